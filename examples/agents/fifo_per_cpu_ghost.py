"""A FIFO for each CPU in ghOSt's manner: teal serve --policy examples/agents/fifo_per_cpu_ghost.py:FifoScheduler"""

from collections import deque

from teal.agents import ghost


class FifoTask(ghost.Task):
    cpu = None
    queued = False


class CpuState:
    def __init__(self, channel):
        self.channel = channel
        self.run_queue = deque()
        self.current = None


class FifoScheduler(ghost.BasicDispatchScheduler):
    TaskType = FifoTask
    AgentType = ghost.LocalAgent

    def __init__(self):
        super().__init__()
        self.cpu_states = {}
        self.last_cpu = 0

    def cpu_state(self, cpu):
        if cpu not in self.cpu_states:
            self.cpu_states[cpu] = CpuState(self.enclave.MakeChannel(cpus=[cpu]))
            if len(self.cpu_states) == 1:
                self.cpu_states[cpu].channel.SetEnclaveDefault()
        return self.cpu_states[cpu]

    def AssignCpu(self, task):
        if task.status_word.affinity() is not None:
            return task.status_word.affinity()
        cpus = self.enclave.cpus()
        self.last_cpu += 1
        return cpus[self.last_cpu % len(cpus)]

    def Migrate(self, task, cpu, barrier):
        if self.cpu_state(cpu).channel.AssociateTask(task.gtid, barrier):
            task.cpu = cpu
            self.Enqueue(task)
            self.enclave.GetAgent(cpu).Ping()

    def Enqueue(self, task, front=False):
        run_queue = self.cpu_state(task.cpu).run_queue
        if not task.queued:
            task.queued = True
            run_queue.appendleft(task) if front else run_queue.append(task)

    def OffCpu(self, task):
        if task.cpu is None:
            return
        state = self.cpu_state(task.cpu)
        if state.current is task:
            state.current = None
        if task.queued:
            task.queued = False
            state.run_queue.remove(task)

    def Runnable(self, task, barrier, front=False):
        if not task.status_word.runnable() or task.status_word.on_cpu():
            return
        if task.cpu is None:
            self.Migrate(task, self.AssignCpu(task), barrier)
        else:
            self.Enqueue(task, front)

    def TaskNew(self, task, msg):
        self.Runnable(task, msg.seqnum)

    def TaskRunnable(self, task, msg):
        self.OffCpu(task)
        self.Runnable(task, msg.seqnum)

    def TaskPreempted(self, task, msg):
        self.OffCpu(task)
        self.Runnable(task, msg.seqnum)

    def TaskYield(self, task, msg):
        self.OffCpu(task)
        self.Runnable(task, msg.seqnum)

    def TaskBlocked(self, task, msg):
        self.OffCpu(task)

    def TaskDead(self, task, msg):
        self.OffCpu(task)

    def TaskDeparted(self, task, msg):
        self.OffCpu(task)

    def TaskPriorityChanged(self, task, msg):
        self.Runnable(task, msg.seqnum)

    def TaskAffinityChanged(self, task, msg):
        self.Runnable(task, msg.seqnum)

    def TaskLatchFailure(self, task, msg):
        self.OffCpu(task)
        self.Runnable(task, msg.seqnum, front=True)

    def FifoSchedule(self, cpu, agent_barrier):
        state = self.cpu_state(cpu)
        req = self.enclave.GetRunRequest(cpu)
        if state.current is None and state.run_queue:
            state.current = state.run_queue.popleft()
            state.current.queued = False
        if state.current is None:
            req.LocalYield(agent_barrier)
            return
        task = state.current
        req.Open(target=task, target_barrier=task.seqnum, agent_barrier=agent_barrier)
        if not req.Commit():
            state.current = None
            self.Enqueue(task, front=True)

    def Schedule(self, cpu, agent_sw):
        agent_barrier = agent_sw.barrier()
        channel = self.cpu_state(cpu).channel
        while (msg := channel.Peek()) is not None:
            self.DispatchMessage(msg)
            channel.Consume(msg)
        self.FifoSchedule(cpu, agent_barrier)
