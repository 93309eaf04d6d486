"""What ghOSt tells a policy: messages and status words; and the tasks and channels that they are about."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from teal._core import Request
from teal.agents.policy import Outcome

if TYPE_CHECKING:
    from teal.agents.ghost.enclave import Enclave


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
        self._displaced = False  # the agent of its CPU looks: as in ghOSt, its task is off the CPU meanwhile

    def barrier(self) -> int:
        return self._barrier

    def in_use(self) -> bool:
        return self._alive

    def runnable(self) -> bool:
        return self._alive and self._request is not None and self._request.runnable

    def on_cpu(self) -> bool:
        """A worker runs it, or has the decision to."""
        return self._alive and not self._displaced and self._request is not None and self._request.staged

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
    """A queue of messages. A policy has one, or makes more by ``Enclave.MakeChannel``."""

    def __init__(self, enclave: Enclave | None = None, cpus: Sequence[int] = ()) -> None:
        self._messages: deque[Message] = deque()
        self._enclave = enclave
        self._cpus = tuple(cpus)

    def AssociateTask(self, gtid: int, barrier: int) -> bool:
        """The task's messages come here from now on. False: there are newer ones than ``barrier`` (ESTALE), or no such
        task any more (ENOENT); nothing has changed then."""
        return self._enclave is not None and self._enclave._associate(self, gtid, barrier)

    def SetEnclaveDefault(self) -> None:
        """Messages about new tasks come here, and those that nobody has consumed so far."""
        if self._enclave is None:
            raise ValueError("SetEnclaveDefault: expected a channel that Enclave.MakeChannel made")
        self._enclave._set_default(self)

    def Peek(self) -> Message | None:
        """The oldest that was not consumed."""
        return self._messages[0] if self._messages else None

    def Consume(self, message: Message) -> None:
        if not self._messages or self._messages[0] is not message:
            raise ValueError("Consume: expected the message that Peek gave last")
        self._messages.popleft()
