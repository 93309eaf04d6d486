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
PORTED = ROOT / "examples" / "agents" / "fifo_ghost.py"
ORIGINAL = Path(__file__).parent / "fifo_for_ghost.txt"
SPEC = f"{PORTED}:FifoScheduler"


def adapted() -> tuple[int, int, int]:
    """(lines of the original, lines changed or added in the port, lines that it does without)."""

    def code(path: Path) -> list[str]:
        return [line for line in path.read_text().splitlines()[1:] if line.strip()]

    before, after = code(ORIGINAL), code(PORTED)
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = sum(to_end - to for tag, _, _, to, to_end in blocks if tag in ("replace", "insert"))
    return len(before), changed, len(before) - len(after)


def test_one_line_is_adapted() -> None:
    lines, changed, without = adapted()
    assert (changed, without) == (1, 6)  # the import; ghOSt's own thread and process, which are the host's here
    said = (ROOT / "docs" / "agents.md").read_text()
    assert f"Of its {lines} lines one changes" in said


def test_it_serves(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", SPEC)
    right(echo, 300)
    agent = agent_host.agents["default"]
    assert agent.state == "online"
    assert agent.seats["default"].completed > 0
    assert agent.seats["default"].bugs == 0


def test_it_runs_on_a_virtual_clock_and_everything_breaks() -> None:
    for result in sim.hunt(SPEC, range(1, 101)):
        assert result.ok, (result.seed, result.violations, result.breaches)
    mine, fifo = (sim.simulate(policy, workers=4, requests=3000) for policy in (SPEC, "fifo"))
    assert mine.ok
    assert mine["short"].percentile_us(99) == pytest.approx(fifo["short"].percentile_us(99), rel=0.1)


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


def test_messages_are_consumed_in_order() -> None:
    channel = ghost.Channel()
    assert channel.Peek() is None
    with pytest.raises(ValueError, match="expected the message"):
        channel.Consume(ghost.Message(ghost.MessageType.MSG_NOP, 1))
