"""What a policy in ghOSt's manner derives from: events become messages, transactions become decisions."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from teal._core import Decision, Request
from teal._core import PolicyWorker as Worker
from teal.agents.ghost.enclave import Agent, Enclave, LocalAgent
from teal.agents.ghost.messages import Channel, Message, MessageType, StatusWord, Task, TxnState
from teal.agents.policy import Outcome, Policy

TaskT = TypeVar("TaskT", bound=Task)


class BasicDispatchScheduler(Policy, Generic[TaskT]):
    """Base class: one method for each message, and ``Schedule``. ``TaskType`` is the class of the policy's tasks;
    ``AgentType`` says who decides: ``Agent``, one for all CPUs, or ``LocalAgent``, one for each."""

    TaskType: ClassVar[type[Task]] = Task
    AgentType: ClassVar[type[Agent]] = Agent

    def __init__(self) -> None:
        self.enclave = Enclave(self.AgentType)
        self._local = issubclass(self.AgentType, LocalAgent)
        # Of local agents each looks after its own queue: a CPU may idle beside what another one's has.
        self.work_conserving = self.moves = not self._local
        self._running: dict[int, Request] = {}  # by CPU, as it was when the CPU was asked about last
        self._leaves: set[int] = set()  # CPUs whose task is to leave
        self._tasks: dict[int, TaskT] = {}  # by gtid, as the policy knows them
        self._words: dict[int, StatusWord] = {}  # by record, as it is
        self._gtids: dict[int, int] = {}  # by record
        self._born: dict[int, tuple[Request, StatusWord]] = {}  # not dispatched yet
        self._last = 0

    @property
    def channel(self) -> Channel:
        """The enclave's default one: all messages, unless the policy makes more channels."""
        return self.enclave._default

    # ---- what a policy says ------------------------------------------------------------------------------------------

    def TaskNew(self, task: TaskT, msg: Message) -> None: ...
    def TaskRunnable(self, task: TaskT, msg: Message) -> None: ...
    def TaskBlocked(self, task: TaskT, msg: Message) -> None: ...
    def TaskDead(self, task: TaskT, msg: Message) -> None: ...
    def TaskDeparted(self, task: TaskT, msg: Message) -> None: ...
    def TaskYield(self, task: TaskT, msg: Message) -> None: ...
    def TaskPreempted(self, task: TaskT, msg: Message) -> None: ...
    def TaskPriorityChanged(self, task: TaskT, msg: Message) -> None: ...
    def TaskAffinityChanged(self, task: TaskT, msg: Message) -> None: ...
    def TaskLatchFailure(self, task: TaskT, msg: Message) -> None: ...
    def CpuTick(self, msg: Message) -> None: ...
    def CpuTimerExpired(self, msg: Message) -> None: ...
    def CpuAvailable(self, msg: Message) -> None: ...
    def CpuBusy(self, msg: Message) -> None: ...
    def AgentWakeup(self, msg: Message) -> None: ...

    def Schedule(self, cpu: int, agent_sw: StatusWord) -> None:
        """Drain, pick, commit: ``cpu`` can take a decision."""
        raise NotImplementedError

    def DispatchMessage(self, msg: Message) -> None:
        """Calls the method that the message is about, with its task."""
        kind = msg.type
        if msg.gtid is None:
            getattr(self, _METHODS[kind])(msg)
            return
        if kind == MessageType.MSG_TASK_NEW:
            request, word = self._born.pop(msg.gtid)
            self._tasks[msg.gtid] = self.TaskType(msg.gtid, word, request)  # type: ignore[assignment]
        task = self._tasks[msg.gtid]
        task.seqnum = msg.seqnum
        getattr(self, _METHODS[kind])(task, msg)
        if kind in (MessageType.MSG_TASK_DEAD, MessageType.MSG_TASK_DEPARTED):
            del self._tasks[msg.gtid]

    # ---- events become messages --------------------------------------------------------------------------------------

    def new(self, request: Request) -> None:
        self._last += 1
        self._gtids[request.index] = self._last
        self._words[request.index] = self.enclave._words[self._last] = StatusWord(request)
        self._born[self._last] = (request, self._words[request.index])
        self._tell_task(MessageType.MSG_TASK_NEW, request)

    def runnable(self, request: Request) -> None:
        self._tell_task(MessageType.MSG_TASK_WAKEUP, request)

    def blocked(self, request: Request) -> None:
        self._tell_task(MessageType.MSG_TASK_BLOCKED, request)

    def yielded(self, request: Request) -> None:
        self._tell_task(MessageType.MSG_TASK_YIELD, request)

    def preempted(self, request: Request) -> None:
        self._tell_task(MessageType.MSG_TASK_PREEMPT, request)

    def done(self, request: Request) -> None:
        self._end(MessageType.MSG_TASK_DEAD, request)

    def departed(self, request: Request) -> None:
        self._end(MessageType.MSG_TASK_DEPARTED, request)

    def priority_changed(self, request: Request, before: int) -> None:
        self._tell_task(MessageType.MSG_TASK_PRIORITY_CHANGED, request)

    def affinity_changed(self, request: Request) -> None:
        self._tell_task(MessageType.MSG_TASK_AFFINITY_CHANGED, request)

    def latch_failed(self, request: Request, why: Outcome) -> None:
        msg = self._tell_task(MessageType.MSG_TASK_LATCH_FAILURE, request)
        msg.outcome, msg.was_latched = _state(why), True

    def worker_available(self, worker: Worker) -> None:
        self.enclave.GetRunRequest(worker.index)
        self.enclave._offline.discard(worker.index)
        self._tell(MessageType.MSG_CPU_AVAILABLE, cpu=worker.index)

    def worker_busy(self, worker: Worker) -> None:
        self._tell(MessageType.MSG_CPU_BUSY, cpu=worker.index)

    def worker_gone(self, worker: Worker) -> None:
        self.enclave._offline.add(worker.index)
        self._give_back(worker.index, Outcome.WORKER_OFFLINE)
        self._tell(MessageType.MSG_CPU_BUSY, cpu=worker.index)

    def tick(self) -> None:
        self._tell(MessageType.MSG_CPU_TICK)

    def timer(self) -> None:
        self._tell(MessageType.MSG_CPU_TIMER_EXPIRED)

    def wakeup(self) -> None:
        self._tell(MessageType.MSG_AGENT_WAKEUP)

    def _tell(self, kind: MessageType, gtid: int | None = None, cpu: int | None = None) -> Message:
        msg = Message(kind, 0, gtid, cpu)
        channel = self.enclave._channel(msg)
        for agent in self.enclave._agents_of(channel):
            agent.status_word._barrier += 1
            msg.seqnum = agent.status_word._barrier
        channel._messages.append(msg)
        return msg

    def _tell_task(self, kind: MessageType, request: Request) -> Message:
        word = self._words[request.index]
        word._barrier += 1
        msg = self._tell(kind, self._gtids[request.index], request.worker)
        msg.seqnum, msg.runtime = word._barrier, request.ran_ns
        return msg

    def _end(self, kind: MessageType, request: Request) -> None:
        self._tell_task(kind, request)
        self._words.pop(request.index)._alive = False
        gtid = self._gtids.pop(request.index)
        self.enclave._words.pop(gtid)
        self.enclave._of_task.pop(gtid, None)

    # ---- transactions become decisions -------------------------------------------------------------------------------

    def pick(self, worker: Worker) -> Decision | None:
        enclave, cpu = self.enclave, worker.index
        enclave.GetRunRequest(cpu)
        (enclave._busy.discard if worker.idle else enclave._busy.add)(cpu)
        if self._local:
            self._note(worker)
            self._run_agents(cpu)
        elif cpu not in enclave._committed:
            self.Schedule(cpu, enclave._global.status_word)
        return self._take(cpu)

    def preempt(self, worker: Worker) -> bool:
        if self._local:
            self._note(worker)
        return worker.index in self._leaves

    def _note(self, worker: Worker) -> None:
        if worker.running is None:
            self._running.pop(worker.index, None)
            self._leaves.discard(worker.index)
        else:
            self._running[worker.index] = worker.running

    def _run_agents(self, cpu: int) -> None:
        """All local agents that have something to look at, and the one of a CPU that has nothing to do."""
        known = self.enclave.cpus()
        if cpu not in self._running and cpu not in self.enclave._committed:
            self.enclave.GetAgent(cpu).Ping()
        for _ in range(len(known) + 1):  # one may ping another
            looking = [each for each in known if self.enclave._has_news(each)]
            for each in looking:
                self._run_agent(each)
            if not looking:
                return

    def _run_agent(self, cpu: int) -> None:
        """Its ``Schedule``, with what its CPU runs taken off it meanwhile."""
        enclave, agent, running = self.enclave, self.enclave.GetAgent(cpu), self._running.get(cpu)
        gtid = None if running is None else self._gtids.get(running.index)
        task = None if gtid is None else self._tasks.get(gtid)
        agent._pinged = False
        if cpu in enclave._committed:  # what it has said before is its to say anew
            self._give_back(cpu, Outcome.ABORTED)
        if task is not None:
            enclave._displaced[cpu] = task
            task.status_word._displaced = True
        self._leaves.discard(cpu)
        try:
            self.Schedule(cpu, agent.status_word)
        finally:
            if task is not None:
                task.status_word._displaced = False
                enclave._displaced.pop(cpu)
        if task is not None and cpu in enclave._committed and task.request.preemptible:
            self._leaves.add(cpu)

    def _take(self, cpu: int) -> Decision | None:
        task, slice_ns = self.enclave._committed.get(cpu, (None, 0))
        if task is None:
            return None
        word = task.status_word
        if not word.in_use() or not word.runnable() or word.on_cpu() or word.affinity() not in (None, cpu):
            self._give_back(cpu, Outcome.TARGET_STALE)  # committed for a CPU that had no room then
            return None
        if self._local and cpu in self._leaves:
            return None  # first what runs there has to leave; then it is asked again
        del self.enclave._committed[cpu]
        self.enclave._busy.add(cpu)
        return Decision(task.request, slice_ns=slice_ns)

    def _give_back(self, cpu: int, why: Outcome) -> None:
        task, _ = self.enclave._committed.pop(cpu, (None, 0))
        if task is not None and task.status_word.in_use():
            self.latch_failed(task.request, why)


def _state(why: Outcome) -> TxnState:
    try:
        return TxnState(int(why))
    except ValueError:
        return TxnState.GHOST_TXN_ABORTED


_METHODS = {
    MessageType.MSG_TASK_NEW: "TaskNew",
    MessageType.MSG_TASK_WAKEUP: "TaskRunnable",
    MessageType.MSG_TASK_BLOCKED: "TaskBlocked",
    MessageType.MSG_TASK_DEAD: "TaskDead",
    MessageType.MSG_TASK_DEPARTED: "TaskDeparted",
    MessageType.MSG_TASK_YIELD: "TaskYield",
    MessageType.MSG_TASK_PREEMPT: "TaskPreempted",
    MessageType.MSG_TASK_PRIORITY_CHANGED: "TaskPriorityChanged",
    MessageType.MSG_TASK_AFFINITY_CHANGED: "TaskAffinityChanged",
    MessageType.MSG_TASK_LATCH_FAILURE: "TaskLatchFailure",
    MessageType.MSG_CPU_TICK: "CpuTick",
    MessageType.MSG_CPU_TIMER_EXPIRED: "CpuTimerExpired",
    MessageType.MSG_CPU_AVAILABLE: "CpuAvailable",
    MessageType.MSG_CPU_BUSY: "CpuBusy",
    MessageType.MSG_AGENT_WAKEUP: "AgentWakeup",
}
