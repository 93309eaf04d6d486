"""A process stands by for an agent that is upgraded or replaced, and goes with the last agent."""

from __future__ import annotations

import os
import signal

import pytest
from agents_fixtures import alive, odd, right, until

import teal
from teal.host.agent_process import AgentProcess, _may_come_back


def standing_by(host: teal.Host) -> int:
    """Its process; 0: there is none."""
    daemon = host._thread._daemon  # type: ignore[union-attr]
    return int(daemon.agents.spare.pid)


def test_an_upgrade_takes_it_and_another_one_stands_by(agent_host: teal.Host, echo: teal.Model) -> None:
    assert standing_by(agent_host) == 0
    first = agent_host.agents.start("default", "fifo").pid
    spare = until(lambda: standing_by(agent_host))
    assert spare != first
    assert agent_host.agents.upgrade("default", odd("Plain")).pid == spare
    right(echo, 20)
    assert until(lambda: standing_by(agent_host)) not in (first, spare)


def test_one_that_died_costs_nothing(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", "fifo")
    spare = until(lambda: standing_by(agent_host))
    os.kill(spare, signal.SIGKILL)
    until(lambda: standing_by(agent_host) != spare)
    assert agent_host.agents.upgrade("default", "edf").pid != spare
    right(echo, 20)


def test_it_goes_with_the_last_agent(agent_host: teal.Host) -> None:
    agent_host.agents.start("default", "fifo")
    spare = until(lambda: standing_by(agent_host))
    agent_host.agents.stop("default")
    assert (standing_by(agent_host), alive(spare)) == (0, False)


def test_where_none_can_be_started_nothing_is_lost(
    agent_host: teal.Host, echo: teal.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = AgentProcess.start

    def no_spares(self: AgentProcess, *, gently: bool = False) -> None:
        if self.name == "spare":
            raise OSError("no more processes")
        start(self, gently=gently)

    monkeypatch.setattr(AgentProcess, "start", no_spares)
    agent_host.agents.start("default", "fifo")
    agent_host.agents.upgrade("default", "edf")
    assert standing_by(agent_host) == 0
    right(echo, 20)


def test_it_makes_way_while_it_starts_and_not_once_it_serves(
    agent_host: teal.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not _may_come_back():
        pytest.skip("needs CAP_SYS_NICE: without it a process starts as all others do")
    seen: dict[int, list[bool]] = {}
    gentle = AgentProcess.gentle

    def watched(self: AgentProcess, on: bool) -> None:
        gentle(self, on)
        seen.setdefault(self.pid, []).append(os.sched_getscheduler(self.pid) == os.SCHED_IDLE)

    monkeypatch.setattr(AgentProcess, "gentle", watched)
    first = agent_host.agents.start("default", "fifo").pid
    spare = until(lambda: standing_by(agent_host))
    until(lambda: len(seen.get(spare, ())) > 1)
    assert agent_host.agents.upgrade("default").pid == spare
    assert seen[spare][:2] == [True, False]
    assert True not in seen.get(first, [])
    assert os.sched_getscheduler(spare) == os.SCHED_OTHER
