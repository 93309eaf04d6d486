"""A central FIFO in ghOSt's manner, on Teal: teal serve --policy examples/agents/fifo_ghost.py:FifoScheduler"""

from collections import deque

from teal.agents import ghost


class FifoTask(ghost.Task):
    queued = False


class FifoScheduler(ghost.BasicDispatchScheduler):
    TaskType = FifoTask

    def __init__(self):
        super().__init__()
        self.run_queue = deque()

    def Enqueue(self, task, front=False):
        if not task.queued:
            task.queued = True
            self.run_queue.appendleft(task) if front else self.run_queue.append(task)

    def TaskNew(self, task, msg):
        if task.status_word.runnable() and not task.status_word.on_cpu():
            self.Enqueue(task)

    def TaskRunnable(self, task, msg):
        self.Enqueue(task)

    def TaskPreempted(self, task, msg):
        self.Enqueue(task)

    def TaskYield(self, task, msg):
        self.Enqueue(task)

    def TaskLatchFailure(self, task, msg):
        if task.status_word.runnable():
            self.Enqueue(task, front=True)

    def Schedule(self, cpu, agent_sw):
        while (msg := self.channel.Peek()) is not None:
            self.DispatchMessage(msg)
            self.channel.Consume(msg)
        agent_barrier = agent_sw.barrier()
        req = self.enclave.GetRunRequest(cpu)
        for task in list(self.run_queue):
            if not task.status_word.in_use():
                self.run_queue.remove(task)
                continue
            req.Open(target=task, target_barrier=task.seqnum, agent_barrier=agent_barrier)
            if req.Commit():
                self.run_queue.remove(task)
                task.queued = False
                return
        req.LocalYield(agent_barrier, ghost.RTLA_ON_IDLE)
