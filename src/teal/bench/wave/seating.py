"""How a driver's host gets its policy: nowhere, in-line in the worker, or in an agent's loop of the driver's own.

An agent as `teal serve --policy` starts it is a process of its own. Two processes that both never sleep cannot share
a core by the microsecond, so here the loop of the agent is stepped by the driver; seat, messages and decisions are the
same. This is the one file of the bench that reaches into the host.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import teal
from teal import _core
from teal.agents import parse_policy
from teal.agents.spec import shipped
from teal.host.agent_options import AgentOptions
from teal.host.pool import Pool

from .mode import Mode

T = TypeVar("T")
POOL = "default"
SLOTS = 4096  # of the load's session: it has some hundred for each kind of request
PATIENCE = 10.0  # seconds, for the host to seat an agent
MAX_WAIT_NS = 10_000_000_000  # a bench's agent is never taken for slow


def host(inline: str, core: int) -> teal.Host:
    """A host with one worker on a core; inline: the policy that is called there, or nothing."""
    limits = teal.Limits(slots=SLOTS)
    if not inline:
        return teal.Host(workers=1, cores=[core], limits=limits)
    return teal.Host(workers=1, cores=[core], limits=limits, policy=f"{inline}{',' if ':' in inline else ':'}inline=1")


def policy(name: str, *, python: bool) -> _core.Policy:
    """A shipped policy, in C++ or in Python."""
    if not python:
        return parse_policy(name)
    made = shipped(name)
    assert made is not None
    return _core.PythonPolicy(made())


def agents(host: teal.Host) -> Any:
    """Agents that are processes of their own."""
    return host.agents


@contextmanager
def seated(host: teal.Host, mode: Mode, seen: dict[str, Any]) -> Iterator[_core.AgentLoop | None]:
    """The mode's agent, to be stepped; None where there is none. Its decisions count meanwhile.

    seen: gets what the host counted at its seat, as agent_view.SeatStatistics takes it.
    """
    if mode.inline or not mode.policy:
        yield None
        return
    pool = _pool(host)
    incarnation = _on_loop(host, pool.seat.attach(mode.link))
    loop = _core.AgentLoop(
        incarnation.agent_view, os.dup(incarnation.desk), parse_policy(mode.policy), mode.link, idle_ns=(1 << 64) - 1
    )
    incarnation.agent_view = -1  # the loop took it

    async def activate() -> None:
        pool.seat.bound(AgentOptions().heartbeat_ns, MAX_WAIT_NS, 0, False)
        pool.seat.activate(incarnation, mode.policy)

    async def numbers() -> dict[str, Any]:
        return pool.seat.numbers(incarnation)

    _on_loop(host, activate())
    try:
        yield loop
        if why := pool.seat.why_not(incarnation):
            raise RuntimeError(f"the bench's agent was put off its seat: {why}")
        seen.update(_on_loop(host, numbers()))
    finally:
        loop.leave()
        _on_loop(host, pool.seat.drop(incarnation))


def _pool(host: teal.Host) -> Pool:
    thread = host._thread
    assert thread is not None
    assert thread._daemon is not None
    return thread._daemon.pools[POOL]


def _on_loop(host: teal.Host, work: Coroutine[Any, Any, T]) -> T:
    thread = host._thread
    assert thread is not None
    assert thread._loop is not None
    return asyncio.run_coroutine_threadsafe(work, thread._loop).result(PATIENCE)
