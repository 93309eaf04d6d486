"""Orders for one agent that meet."""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents_fixtures import odd, until

import teal
from teal.host.agent import Agent
from teal.host.agent_options import AgentOptions
from teal.host.agent_part import AgentPart
from teal.host.agents import Agents
from teal.host.policy_spec import parse
from teal.host.pool import Pool


@pytest.mark.parametrize("order", ["upgrade", "stop"])
@pytest.mark.parametrize(("successor", "error"), [(False, teal.NotFound), (True, teal.Busy)])
def test_an_order_that_waited_behind_a_stop(order: str, successor: bool, error: type[Exception]) -> None:
    """It brings up nothing for an agent that is gone, and leaves alone the one that came after it."""

    async def run() -> None:
        pool = cast(Pool, SimpleNamespace(name="default"))
        agents = Agents({"default": pool})
        part = AgentPart(pool)

        def sit() -> Agent:
            agent = Agent(agents, (part,), (parse("fifo", "$"),), AgentOptions())
            agents._agents.append(agent)
            return agent

        first = sit()
        await first.busy.acquire()
        asked: Any = agents.upgrade("default", [], {}) if order == "upgrade" else agents.stop_agent("default")
        waiting = asyncio.create_task(asked)
        await asyncio.sleep(0)
        agents._agents.remove(first)
        await first.stop("asked to")
        second = sit() if successor else None
        first.busy.release()
        with pytest.raises(error):
            await waiting
        assert agents._agents == [second] * successor
        assert first.state == "stopped"
        assert second is None or second.state == "starting"

    asyncio.run(run())


@pytest.mark.parametrize("order", ["start", "upgrade"])
def test_a_host_that_stops_ends_what_is_being_brought_up(order: str) -> None:
    """Its process is gone, and reaped, before the host's stop() returns."""

    def children() -> set[int]:
        found: set[int] = set()
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as listed:
                found |= {int(pid) for pid in listed.read().split()}
        return found

    failed: list[Exception] = []

    def give(host: teal.Host) -> None:
        try:
            if order == "start":
                host.agents.start("default", odd("MadeSlowly"))
            else:
                host.agents.upgrade("default", odd("MadeSlowly"))
        except teal.TealError as error:
            failed.append(error)

    before = children()
    with teal.Host() as host:
        if order == "upgrade":
            host.agents.start("default", "fifo")
        there = children()
        spare = host._thread._daemon.agents.spare  # an upgrade takes the process that stands by
        orders = threading.Thread(target=give, args=(host,))
        orders.start()
        until(lambda: spare.pid == 0 if order == "upgrade" else children() - there)
    orders.join()
    assert len(failed) == 1
    assert children() <= before
