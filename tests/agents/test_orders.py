"""Orders for one agent that meet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

import teal
from teal.host.agent_options import AgentOptions
from teal.host.agents import Agent, Agents
from teal.host.policy_spec import parse
from teal.host.pool import Pool


@pytest.mark.parametrize("order", ["upgrade", "stop"])
@pytest.mark.parametrize(("successor", "error"), [(False, teal.NotFound), (True, teal.Busy)])
def test_an_order_that_waited_behind_a_stop(order: str, successor: bool, error: type[Exception]) -> None:
    """It brings up nothing for an agent that is gone, and leaves alone the one that came after it."""

    async def run() -> None:
        pool = cast(Pool, SimpleNamespace(name="default"))
        agents = Agents({"default": pool})

        def sit() -> Agent:
            agent = Agent(agents, (pool,), (parse("fifo", "$"),), AgentOptions())
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
