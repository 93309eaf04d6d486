"""The pool as ghOSt's enclave: its CPUs, a transaction slot for each, and the agents on them.

Theory of operation: Commit checks in ghOSt's order and says at once whether it holds; what it passes is staged for the
worker, and the host checks it once more when the worker takes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from teal.agents.ghost.messages import COMMIT_AT_TXN_COMMIT, Channel, Message, StatusWord, Task, TxnState


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
                self._enclave._commit(self.cpu, self._target, self._slice_ns)
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


class Agent:
    """What decides: one for all CPUs (a global agent). ``AgentType`` of a scheduler says which kind it has."""

    def __init__(self) -> None:
        self.status_word = StatusWord()
        self._pinged = False

    def Ping(self) -> None:
        """Its ``Schedule`` is to be called soon, also if there is no message for it."""
        self._pinged = True


class LocalAgent(Agent):
    """One for each CPU: its ``Schedule`` is called when there is a message in its CPU's channel, when it was pinged, or
    when its CPU has nothing to do. What runs on its CPU is off it meanwhile, as in ghOSt: to commit it again lets it go
    on, to commit another one asks it to leave."""


class Enclave:
    """The pool: its CPUs, and a transaction slot for each. A CPU is known once it had nothing to do."""

    def __init__(self, agent_type: type[Agent] = Agent) -> None:
        self._agent_type = agent_type
        self._global = Agent()
        self._agents: dict[int, Agent] = {}  # of local ones, by CPU
        self._default = Channel(self)
        self._of_task: dict[int, Channel] = {}  # by gtid
        self._of_cpu: dict[int, Channel] = {}
        self._words: dict[int, StatusWord] = {}  # by gtid
        self._displaced: dict[int, Task] = {}  # by CPU: what its agent has taken off it, while that looks
        self._requests: dict[int, RunRequest] = {}
        self._committed: dict[int, tuple[Task, int]] = {}
        self._offline: set[int] = set()
        self._busy: set[int] = set()

    def cpus(self) -> list[int]:
        return sorted(self._requests.keys() - self._offline)

    def MakeChannel(self, cpus: Sequence[int] = ()) -> Channel:
        """One more channel. ``cpus``: those whose messages come here, and whose agents are to look at it."""
        made = Channel(self, cpus)
        for cpu in cpus:
            self._of_cpu[cpu] = made
        return made

    def GetAgent(self, cpu: int) -> Agent:
        """The agent that decides for that CPU."""
        if not self._is_local():
            return self._global
        if cpu not in self._agents:
            self._agents[cpu] = self._agent_type()
        return self._agents[cpu]

    def _is_local(self) -> bool:
        return issubclass(self._agent_type, LocalAgent)

    def _associate(self, channel: Channel, gtid: int, barrier: int) -> bool:
        word = self._words.get(gtid)
        if word is None or not word.in_use() or word.barrier() != barrier:
            return False
        self._of_task[gtid] = channel
        return True

    def _set_default(self, channel: Channel) -> None:
        channel._messages.extendleft(reversed(self._default._messages))
        self._default._messages.clear()
        self._default = channel

    def _channel(self, message: Message) -> Channel:
        """Where a message goes."""
        if message.gtid is not None:
            return self._of_task.get(message.gtid, self._default)
        return self._of_cpu.get(message.cpu, self._default) if message.cpu is not None else self._default

    def _agents_of(self, channel: Channel) -> list[Agent]:
        """Whose barrier a message in it counts up."""
        if not self._is_local():
            return [self._global]
        return [self.GetAgent(cpu) for cpu in channel._cpus]

    def _has_news(self, cpu: int) -> bool:
        """Is the local agent of a CPU to look?"""
        channel = self._of_cpu.get(cpu)
        return self.GetAgent(cpu)._pinged or (channel is not None and channel.Peek() is not None)

    def GetRunRequest(self, cpu: int) -> RunRequest:
        return self._requests.setdefault(cpu, RunRequest(self, cpu))

    def CommitRunRequests(self, cpus: Sequence[int]) -> bool:
        """Those that are open, each by itself. True: all hold."""
        results = [self.GetRunRequest(cpu).Commit() for cpu in cpus]
        return all(results)

    def Available(self, cpu: int) -> bool:
        """It runs nothing, and nothing was committed for it."""
        return cpu in self._requests and cpu not in self._busy | self._offline and cpu not in self._committed

    def _commit(self, cpu: int, task: Task, slice_ns: int) -> None:
        if self._displaced.get(cpu) is not task:  # else it goes on
            self._committed[cpu] = (task, slice_ns)

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
        if run._agent_barrier not in (None, self.GetAgent(run.cpu).status_word.barrier()):
            return TxnState.GHOST_TXN_AGENT_STALE
        return TxnState.GHOST_TXN_COMPLETE
