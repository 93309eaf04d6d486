"""Watches over a crew that serves: does it lie, does it belong on another core?

Theory of operation: the core's sweeper watches the heart and the waiting requests by itself, and says when it had to
act (seats.py). Here somebody looks twice a second at the refusals that no correct agent meets, and ten times a second,
where placement is "auto", at how busy the agent is.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from teal.host.placement import Place, Placement

if TYPE_CHECKING:
    from teal.host.agent import Agent
    from teal.host.agent_part import AgentPart
    from teal.host.crew import Crew

_LOOK = 0.5  # seconds
_LOOK_AT_LOAD = 0.1
_MOST_BUGS = 100  # refusals in a second that only a wrong agent meets
_FATAL = ("invalid_flags", "invalid_target", "not_permitted", "invalid_worker", "unsupported_version", "forged")


class Watch:
    """Of one crew, from when it serves until ``stop``."""

    def __init__(self, agent: Agent, crew: Crew) -> None:
        self._agent = agent
        self._crew = crew
        own = crew.options.placement != "host" and crew.options.core is not None
        self._placement = Placement(Place.OFFLOAD if own else Place.HOST, time.monotonic())
        self._before: dict[str, tuple[float, int, int]] = {}  # by pool: time, busy ns, events
        self._bugs: dict[str, int] = {}
        self._bugs_since = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def place(self) -> str:
        return self._placement.place.value

    @property
    def moves(self) -> int:
        return self._placement.moves

    def stop(self) -> None:
        if asyncio.current_task() is not self._task:
            self._task.cancel()

    async def _run(self) -> None:
        moves = self._crew.options.placement == "auto"
        while self._agent.crew is self._crew:
            await asyncio.sleep(_LOOK_AT_LOAD if moves else _LOOK)
            if self._agent.state == "frozen":
                continue
            for pool in self._agent.pools:
                if why := self._wrong(pool):
                    self._agent.fell(self._crew, why)
                    return
            if moves:
                self._look_at_load()

    def _wrong(self, pool: AgentPart) -> str:
        """Why it cannot go on at that pool; nothing: it can."""
        incarnation = self._crew.incarnation(pool)
        now = time.monotonic()
        if now - self._bugs_since >= 1.0:
            self._bugs_since = now
            self._bugs.clear()
        bugs, _, _ = pool.seat.pulse(incarnation)
        if bugs - self._bugs.setdefault(pool.name, bugs) > _MOST_BUGS:
            refused = pool.seat.numbers(incarnation)["refused"]
            worst = max(_FATAL, key=lambda name: int(refused[name]))
            return f"more than {_MOST_BUGS} of its decisions in a second made no sense, most of them {worst}"
        return ""

    def _look_at_load(self) -> None:
        now = time.monotonic()
        busy = events = 0.0
        for pool in self._agent.pools:
            _, busy_ns, seen = pool.seat.pulse(self._crew.incarnation(pool))
            before = self._before.get(pool.name)
            self._before[pool.name] = (now, busy_ns, seen)
            if before is None or now <= before[0]:
                return
            seconds = now - before[0]
            # The agent's own words: cut to what is possible.
            busy += min(1.0, max(0.0, (busy_ns - before[1]) / 1e9 / seconds))
            events += max(0.0, (seen - before[2]) / seconds)
        to = self._placement.look(now, min(1.0, busy), events)
        if to is not None:
            self._crew.move(to is Place.OFFLOAD)
            where = "its own core" if to is Place.OFFLOAD else "the workers' cores"
            self._agent.note("moved", self._crew, f"to {where}: {busy:.0%} busy, {events:.0f} events a second")
