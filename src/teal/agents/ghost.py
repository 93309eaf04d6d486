"""Names as ghOSt's users know them: a policy of the form "drain, pick, commit" runs here with its loop unchanged.

    from teal.agents import ghost

    class Fifo(ghost.BasicDispatchScheduler):
        def Schedule(self, cpu, agent_sw): ...

Theory of operation: a task is a request, a CPU is a worker, the enclave is the pool. Each event of teal.agents.Policy
becomes a message in a channel, and counts up the barrier of its task and of the agent, as a status word shows them.
Whenever a worker can take a decision, ``Schedule`` is called with its CPU: it drains the channel, picks a task, opens
the CPU's transaction with the barriers that it has acted on, and commits it. Commit checks in ghOSt's order and says at
once whether it holds; what it passes is staged for the worker, and the host checks it once more when the worker takes
it. A refusal there comes as MSG_TASK_LATCH_FAILURE.

A transaction may be committed for any CPU, so one Schedule may decide for all of them (a global agent). What is
committed for a CPU that runs something runs there next; to take a CPU from what it runs, give it a slice, or answer
``preempt``. What is different from ghOSt is said in docs/agents.md.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from teal._core import Decision, Request
from teal._core import PolicyWorker as Worker
from teal.agents.policy import Outcome, Policy


class MessageType(enum.IntEnum):
    """ghOSt's numbers."""

    MSG_NOP = 0
    MSG_TASK_DEAD = 64
    MSG_TASK_BLOCKED = 65
    MSG_TASK_WAKEUP = 66
    MSG_TASK_NEW = 67
    MSG_TASK_PREEMPT = 68
    MSG_TASK_YIELD = 69
    MSG_TASK_DEPARTED = 70
    MSG_TASK_AFFINITY_CHANGED = 72
    MSG_TASK_PRIORITY_CHANGED = 74
    MSG_TASK_LATCH_FAILURE = 75
    MSG_CPU_TICK = 128
    MSG_CPU_TIMER_EXPIRED = 129
    MSG_CPU_AVAILABLE = 131
    MSG_CPU_BUSY = 132
    MSG_AGENT_WAKEUP = 134


class TxnState(enum.IntEnum):
    """What became of a transaction. The refusals are teal.agents.Outcome under their old names."""

    GHOST_TXN_COMPLETE = Outcome.COMPLETE
    GHOST_TXN_ABORTED = Outcome.ABORTED
    GHOST_TXN_TARGET_ONCPU = Outcome.ALREADY_RUNNING
    GHOST_TXN_TARGET_STALE = Outcome.TARGET_STALE
    GHOST_TXN_TARGET_NOT_FOUND = Outcome.NOT_FOUND
    GHOST_TXN_TARGET_NOT_RUNNABLE = Outcome.NOT_RUNNABLE
    GHOST_TXN_AGENT_STALE = Outcome.AGENT_STALE
    GHOST_TXN_CPU_OFFLINE = Outcome.WORKER_OFFLINE
    GHOST_TXN_CPU_UNAVAIL = Outcome.WORKER_UNAVAILABLE
    GHOST_TXN_NOT_PERMITTED = Outcome.NOT_PERMITTED
    GHOST_TXN_READY = 0x7FFFFFFF


RTLA_ON_IDLE = 1  # accepted, and without meaning here: an agent is not on the CPU that it decides about
COMMIT_AT_TXN_COMMIT = 1


class StatusWord:
    """Of a task, or of the agent: how many messages there were about it, and what is known of it."""

    def __init__(self, request: Request | None = None) -> None:
        self._request = request
        self._barrier = 0
        self._alive = True

    def barrier(self) -> int:
        return self._barrier

    def in_use(self) -> bool:
        return self._alive

    def runnable(self) -> bool:
        return self._alive and self._request is not None and self._request.runnable

    def on_cpu(self) -> bool:
        """A worker runs it, or has the decision to."""
        return self._alive and self._request is not None and self._request.staged

    def runtime(self) -> int:
        """Nanoseconds that it has run."""
        return 0 if self._request is None else self._request.ran_ns

    def affinity(self) -> int | None:
        """The only CPU that can go on with it; None: any."""
        return None if self._request is None else self._request.worker


class Task:
    """What a policy knows of a task. Derive from it for more, and name yours in ``TaskType``."""

    def __init__(self, gtid: int, status_word: StatusWord, request: Request) -> None:
        self.gtid = gtid
        self.status_word = status_word
        self.request = request  # deadline_ns, model, priority, …
        self.seqnum = 0  # of the last message that the policy has seen about it


class Message:
    """type, seqnum, and what it is about: a task's gtid, a cpu, or both."""

    __slots__ = ("cpu", "gtid", "outcome", "runtime", "seqnum", "type", "was_latched")

    def __init__(self, kind: MessageType, seqnum: int, gtid: int | None = None, cpu: int | None = None) -> None:
        self.type = kind
        self.seqnum = seqnum
        self.gtid = gtid
        self.cpu = cpu
        self.runtime = 0
        self.was_latched = False
        self.outcome = TxnState.GHOST_TXN_COMPLETE  # of a MSG_TASK_LATCH_FAILURE


class Channel:
    """The queue of messages."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def Peek(self) -> Message | None:
        """The oldest that was not consumed."""
        return self._messages[0] if self._messages else None

    def Consume(self, message: Message) -> None:
        if not self._messages or self._messages[0] is not message:
            raise ValueError("Consume: expected the message that Peek gave last")
        self._messages.popleft()


class RunRequest:
    """The transaction slot of one CPU."""

    def __init__(self, enclave: Enclave, cpu: int) -> None:
        self._enclave = enclave
        self.cpu = cpu
        self.state = TxnState.GHOST_TXN_COMPLETE
        self._target: Task | None = None
        self._target_barrier = 0
        self._agent_barrier: int | None = None
        self._slice_ns = 0

    def Open(
        self,
        target: Task,
        target_barrier: int | None = None,
        agent_barrier: int | None = None,
        commit_flags: int = COMMIT_AT_TXN_COMMIT,
        slice_ns: int = 0,
    ) -> None:
        """``target_barrier``: refused once there are newer messages about the task [its seqnum]. ``agent_barrier``:
        … about anything. ``slice_ns``: it leaves the CPU after so long; not in ghOSt."""
        if commit_flags != COMMIT_AT_TXN_COMMIT:
            raise ValueError(f"Open: commit_flags {commit_flags}, expected COMMIT_AT_TXN_COMMIT")
        self._target = target
        self._target_barrier = target.seqnum if target_barrier is None else target_barrier
        self._agent_barrier = agent_barrier
        self._slice_ns = slice_ns
        self.state = TxnState.GHOST_TXN_READY

    def Commit(self) -> bool:
        """True: it holds. Else ``state`` says why."""
        if self.state == TxnState.GHOST_TXN_READY:
            self.state = self._enclave._check(self)
            if self.state == TxnState.GHOST_TXN_COMPLETE and self._target is not None:
                self._enclave._committed[self.cpu] = (self._target, self._slice_ns)
        return self.succeeded()

    def Abort(self) -> None:
        if self.state == TxnState.GHOST_TXN_READY:
            self.state = TxnState.GHOST_TXN_ABORTED

    def LocalYield(self, agent_barrier: int, flags: int = 0) -> None:
        """Nothing for this CPU until there is a message."""

    def open(self) -> bool:
        return self.state == TxnState.GHOST_TXN_READY

    def committed(self) -> bool:
        return self.state != TxnState.GHOST_TXN_READY

    def succeeded(self) -> bool:
        return self.state == TxnState.GHOST_TXN_COMPLETE

    def failed(self) -> bool:
        return self.committed() and not self.succeeded()


class Enclave:
    """The pool: its CPUs, and a transaction slot for each. A CPU is known once it has asked for work."""

    def __init__(self) -> None:
        self._agent = StatusWord()
        self._requests: dict[int, RunRequest] = {}
        self._committed: dict[int, tuple[Task, int]] = {}
        self._offline: set[int] = set()
        self._busy: set[int] = set()

    def cpus(self) -> list[int]:
        return sorted(self._requests.keys() - self._offline)

    def GetRunRequest(self, cpu: int) -> RunRequest:
        return self._requests.setdefault(cpu, RunRequest(self, cpu))

    def CommitRunRequests(self, cpus: Sequence[int]) -> bool:
        """Those that are open, each by itself. True: all hold."""
        results = [self.GetRunRequest(cpu).Commit() for cpu in cpus]
        return all(results)

    def Available(self, cpu: int) -> bool:
        """It runs nothing, and nothing was committed for it."""
        return cpu in self._requests and cpu not in self._busy | self._offline and cpu not in self._committed

    def _check(self, run: RunRequest) -> TxnState:
        task = run._target
        if run.cpu in self._offline:
            return TxnState.GHOST_TXN_CPU_OFFLINE
        if task is None or not task.status_word.in_use():
            return TxnState.GHOST_TXN_TARGET_NOT_FOUND
        if task.status_word.barrier() != run._target_barrier:
            return TxnState.GHOST_TXN_TARGET_STALE
        if not task.status_word.runnable():
            return TxnState.GHOST_TXN_TARGET_NOT_RUNNABLE
        if task.status_word.on_cpu() or any(task is other for other, _ in self._committed.values()):
            return TxnState.GHOST_TXN_TARGET_ONCPU
        if task.status_word.affinity() not in (None, run.cpu):
            return TxnState.GHOST_TXN_NOT_PERMITTED
        if run.cpu in self._committed:
            return TxnState.GHOST_TXN_CPU_UNAVAIL
        if run._agent_barrier not in (None, self._agent.barrier()):
            return TxnState.GHOST_TXN_AGENT_STALE
        return TxnState.GHOST_TXN_COMPLETE


TaskT = TypeVar("TaskT", bound=Task)


class BasicDispatchScheduler(Policy, Generic[TaskT]):
    """Base class: one method for each message, and ``Schedule``. ``TaskType`` is the class of the policy's tasks."""

    TaskType: ClassVar[type[Task]] = Task

    def __init__(self) -> None:
        self.channel = Channel()
        self.enclave = Enclave()
        self._tasks: dict[int, TaskT] = {}  # by gtid, as the policy knows them
        self._words: dict[int, StatusWord] = {}  # by record, as it is
        self._gtids: dict[int, int] = {}  # by record
        self._born: dict[int, tuple[Request, StatusWord]] = {}  # not dispatched yet
        self._last = 0

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
        self._words[request.index] = StatusWord(request)
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
        self.enclave._agent._barrier += 1
        msg = Message(kind, self.enclave._agent._barrier, gtid, cpu)
        self.channel._messages.append(msg)
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
        del self._gtids[request.index]

    # ---- transactions become decisions -------------------------------------------------------------------------------

    def pick(self, worker: Worker) -> Decision | None:
        enclave, cpu = self.enclave, worker.index
        enclave.GetRunRequest(cpu)
        (enclave._busy.discard if worker.idle else enclave._busy.add)(cpu)
        if cpu not in enclave._committed:
            self.Schedule(cpu, enclave._agent)
        return self._take(cpu)

    def _take(self, cpu: int) -> Decision | None:
        task, slice_ns = self.enclave._committed.get(cpu, (None, 0))
        if task is None:
            return None
        word = task.status_word
        if not word.in_use() or not word.runnable() or word.on_cpu() or word.affinity() not in (None, cpu):
            self._give_back(cpu, Outcome.TARGET_STALE)  # committed for a CPU that had no room then
            return None
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
