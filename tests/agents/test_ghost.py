"""The porting layer: a policy in ghOSt's manner runs here, and what had to change in it is counted."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
from agents_fixtures import right

import teal
from teal import sim
from teal.agents import ghost

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
# The port, what one would write for ghOSt, and of that: lines, lines that changed or came, lines that went.
PORTS = {
    "central": ("fifo_ghost.py", "fifo_for_ghost.txt", (47, 1, 7)),  # the import; ghOSt's own thread and process
    # … and what says that each CPU has an agent, CPUs that are known one by one, and requests that are bound to one.
    "per CPU": ("fifo_per_cpu_ghost.py", "fifo_per_cpu_for_ghost.txt", (100, 9, 9)),
}


def spec(which: str) -> str:
    return f"{ROOT / 'examples' / 'agents' / PORTS[which][0]}:FifoScheduler"


def adapted(port: Path, original: Path) -> tuple[int, int, int]:
    """(lines of the original, lines changed or added in the port, lines changed or left out)."""

    def code(path: Path) -> list[str]:
        return [line for line in path.read_text().splitlines()[1:] if line.strip()]

    before, after = code(original), code(port)
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    came = sum(to_end - to for tag, _, _, to, to_end in blocks if tag != "equal")
    went = sum(end - at for tag, at, end, _, _ in blocks if tag != "equal")
    return len(before), came, went


@pytest.mark.parametrize("which", PORTS)
def test_adapted_lines_are_as_many_as_is_said(which: str) -> None:
    port, original, counts = PORTS[which]
    assert adapted(ROOT / "examples" / "agents" / port, HERE / original) == counts
    lines, came, _ = counts
    said = (ROOT / "docs" / "agents.md").read_text()
    assert f"[{port}](../examples/agents/{port}) | {lines} | {came} |" in said


@pytest.mark.parametrize("which", PORTS)
def test_it_serves(agent_host: teal.Host, echo: teal.Model, which: str) -> None:
    # Per CPU a request may wait beside an idle worker: for as long as the queue of its own takes on a busy machine.
    agent_host.agents.start("default", spec(which), max_wait="30s", heartbeat="10s")
    right(echo, 300)
    agent = agent_host.agents["default"]
    assert agent.state == "online"
    assert agent.seats["default"].completed > 0
    assert agent.seats["default"].bugs == 0


@pytest.mark.parametrize("which", PORTS)
def test_it_runs_on_a_virtual_clock_and_everything_breaks(which: str) -> None:
    for result in sim.hunt(spec(which), range(1, 101)):
        assert result.ok, (result.seed, result.violations, result.breaches)


def test_a_central_one_is_a_fifo() -> None:
    mine, fifo = (sim.simulate(policy, workers=4, requests=3000) for policy in (spec("central"), "fifo"))
    assert mine.ok
    assert mine["short"].percentile_us(99) == pytest.approx(fifo["short"].percentile_us(99), rel=0.1)


def test_one_per_cpu_keeps_requests_where_they_are() -> None:
    """Short ones wait behind long ones of their CPU though others idle, as in ghOSt: it is no central queue."""
    mine, fifo = (sim.simulate(policy, workers=4, requests=3000) for policy in (spec("per CPU"), "fifo"))
    assert mine.ok
    assert mine["short"].percentile_us(99) > 2 * fifo["short"].percentile_us(99)


class Recording(ghost.BasicDispatchScheduler[ghost.Task]):
    """Opens what it is told to, and keeps what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[ghost.Task] = []
        self.said: set[ghost.TxnState] = set()

    def TaskNew(self, task: ghost.Task, msg: ghost.Message) -> None:
        self.tasks.append(task)

    def attempt(self, cpu: int, task: ghost.Task, **how: Any) -> bool:
        run = self.enclave.GetRunRequest(cpu)
        run.Open(task, **how)
        done = run.Commit()
        self.said.add(run.state)
        assert run.committed()
        assert run.succeeded() is done
        return done

    def Schedule(self, cpu: int, agent_sw: ghost.StatusWord) -> None:
        early = agent_sw.barrier() - 1
        while (msg := self.channel.Peek()) is not None:
            self.DispatchMessage(msg)
            self.channel.Consume(msg)
        for task in self.tasks[-4:]:
            self.attempt(cpu, task, target_barrier=task.seqnum + 1)
            self.attempt(cpu, task, agent_barrier=early)
            self.attempt(cpu, task)


def test_commits_are_refused_as_in_ghost() -> None:
    made: list[Recording] = []

    def make() -> Recording:
        made.append(Recording())
        return made[-1]

    result = sim.simulate(make, workers=2, requests=60, types=[sim.Type("one", mean="30us", preemptible=False)])
    assert result.policy_error == ""
    names = {state.name for one in made for state in one.said}
    assert {
        "GHOST_TXN_COMPLETE",
        "GHOST_TXN_AGENT_STALE",
        "GHOST_TXN_TARGET_STALE",
        "GHOST_TXN_TARGET_NOT_FOUND",
    } <= names


class Switching(ghost.BasicDispatchScheduler[ghost.Task]):
    """Local agents, of which each runs the newest of its tasks: what runs has to leave."""

    AgentType = ghost.LocalAgent

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[ghost.Task] = []
        self.seen: set[ghost.TxnState] = set()

    def put(self, task: ghost.Task, msg: ghost.Message) -> None:
        if task not in self.stack:
            self.stack.append(task)

    TaskNew = TaskRunnable = TaskPreempted = TaskYield = put

    def drop(self, task: ghost.Task, msg: ghost.Message) -> None:
        if task in self.stack:
            self.stack.remove(task)

    TaskDead = TaskDeparted = TaskBlocked = drop

    def Schedule(self, cpu: int, agent_sw: ghost.StatusWord) -> None:
        if not self.enclave._of_cpu:
            self.enclave.MakeChannel(cpus=[cpu]).SetEnclaveDefault()
        while (msg := self.channel.Peek()) is not None:
            self.DispatchMessage(msg)
            self.channel.Consume(msg)
        if self.stack:
            run = self.enclave.GetRunRequest(cpu)
            run.Open(self.stack[-1], agent_barrier=agent_sw.barrier())
            run.Commit()
            self.seen.add(run.state)


def test_a_local_agent_takes_its_cpu_from_what_runs() -> None:
    types = [sim.Type("long", mean="3ms", preemptible=True)]
    result = sim.simulate(Switching, workers=1, requests=200, types=types, load=0.8)
    assert result.policy_error == ""
    assert not result.violations
    assert result.counters["preempted"] > 20


def test_channels_take_tasks_over_and_say_when_they_cannot() -> None:
    enclave = ghost.Enclave(ghost.LocalAgent)
    mine, other = enclave.MakeChannel(cpus=[0]), enclave.MakeChannel(cpus=[1])
    mine.SetEnclaveDefault()
    word = enclave._words[7] = ghost.StatusWord()
    word._barrier = 3
    assert not other.AssociateTask(7, 2)  # ESTALE
    assert not other.AssociateTask(8, 3)  # ENOENT
    assert enclave._channel(ghost.Message(ghost.MessageType.MSG_TASK_WAKEUP, 1, gtid=7)) is mine
    assert other.AssociateTask(7, 3)
    assert enclave._channel(ghost.Message(ghost.MessageType.MSG_TASK_WAKEUP, 1, gtid=7)) is other
    assert enclave._channel(ghost.Message(ghost.MessageType.MSG_CPU_TICK, 1)) is mine
    with pytest.raises(ValueError, match="MakeChannel"):
        ghost.Channel().SetEnclaveDefault()


def test_messages_are_consumed_in_order() -> None:
    channel = ghost.Channel()
    assert channel.Peek() is None
    with pytest.raises(ValueError, match="expected the message"):
        channel.Consume(ghost.Message(ghost.MessageType.MSG_NOP, 1))
