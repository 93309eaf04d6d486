"""A pool's seat, as the host keeps it: the pair of regions that each agent gets anew, and who holds them.

Theory of operation: an incarnation is made when an agent is about to sit down (attach), shown to every worker, and
only then handed to the agent. The host makes it the one that counts (activate); the core takes that back when the
agent's heart stops or a request waits too long, and the host when the process dies or is sent away (fall_back): in
each case what is queued goes on in the pool's own order. Two incarnations may be there at once, for an upgrade; one
counts. It is dropped once nobody decides or reads there any more. What the core did by itself comes by ``happened``
(seats.py); an incarnation that lost its rights as its heart stood still can be activated again once it beats.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from teal import _core
from teal.errors import PeerDied
from teal.host import wire

if TYPE_CHECKING:
    from teal.host.pool import Pool
    from teal.host.process import WorkerProcess

_LOOKS_NS = 2_000_000  # the look that finds a heart that stands still comes 1 ms later, or two


@dataclass(slots=True, eq=False)
class Incarnation:
    """view, desk: for workers, the core's to close; agent_view: the agent's, which can be mapped for reading only."""

    number: int
    link: str
    view: int
    desk: int
    agent_view: int
    dropped: bool = False

    def handed_over(self) -> None:
        """The agent has its descriptors."""
        if self.agent_view >= 0:
            with contextlib.suppress(OSError):
                os.close(self.agent_view)
            self.agent_view = -1


class Seat:
    """Of one pool. All methods run on the daemon's loop."""

    def __init__(self, pool: Pool, index: int = 0) -> None:
        self.pool = pool
        self.index = index
        self.active: Incarnation | None = None
        self.policy = ""  # that decides now, for people
        self.models: dict[int, str] = {}  # names, by index: settings of policies speak of them
        # The crew that sits here is told of new ones.
        self.on_named: Callable[[int, str], Coroutine[Any, Any, None]] | None = None
        self.clients: dict[int, str] = {}  # the same of sessions, by index: "UID/PID"
        self.on_client: Callable[[int, str], None] | None = None
        self._inline = ""
        self._there: list[Incarnation] = []
        self._why: dict[int, str] = {}  # by incarnation: why the core took its rights
        # The crew that sits here is told when the core put it off ("put off", "frozen"), and when it "beats" again.
        self.on_event: Callable[[int, str, str], None] | None = None

    async def attach(self, link: str) -> Incarnation:
        """A new incarnation that every worker has. Raises what the core does (memory, descriptors)."""
        number, view, desk, agent_view = self.pool.sweeper.attach_seat(self.index, link)
        incarnation = Incarnation(number, link, view, desk, agent_view)
        self._there.append(incarnation)
        try:
            await asyncio.gather(*(self._shown(worker, incarnation) for worker in self.pool.workers if not worker.gone))
        except BaseException:  # nobody else knows of it
            await self.drop(incarnation)
            raise
        return incarnation

    async def name_model(self, index: int, name: str) -> None:
        """Before the first request of that model comes; returns when the agent here, if there is one, knows it."""
        if self.models.get(index) != name:
            self.models[index] = name
            if self.on_named is not None:
                await self.on_named(index, name)

    def name_client(self, index: int, name: str) -> None:
        """A session of that client is open from now on. Its agent hears of it soon; nobody waits for that."""
        if self.clients.get(index) != name:
            self.clients[index] = name
            if self.on_client is not None:
                self.on_client(index, name)

    async def _shown(self, worker: WorkerProcess, incarnation: Incarnation) -> None:
        order = wire.AddSeat(self.index, incarnation.number, incarnation.link)
        with contextlib.suppress(PeerDied):
            await worker.ask(order, ("add seat", self.index, incarnation.number), (incarnation.view, incarnation.desk))

    def tell(self, worker: WorkerProcess) -> None:
        """A worker that replaces another one, before it is opened."""
        if self._inline:
            worker.send(wire.DecideInline(self._inline))
        for incarnation in self._there:
            order = wire.AddSeat(self.index, incarnation.number, incarnation.link)
            worker.send(order, (incarnation.view, incarnation.desk))

    def decide_inline(self, policy: str) -> None:
        """A policy decides in the worker, and no agent: what agents are measured against."""
        self._inline = policy
        for worker in self.pool.workers:
            if not worker.gone:
                worker.send(wire.DecideInline(policy))

    def bound(self, heartbeat_ns: int, max_wait_ns: int, max_overtaken_ns: int, local_fast_path: bool) -> None:
        """How long a heart may stand still, how long a request may wait for a decision, and be overtaken, and whether
        one that finds an idle worker waits for none."""
        self.pool.sweeper.set_seat_limits(self.index, heartbeat_ns - _LOOKS_NS, max_wait_ns, max_overtaken_ns)
        self.pool.sweeper.set_local_fast_path(self.index, local_fast_path)

    def activate(self, incarnation: Incarnation, policy: str) -> None:
        """Its decisions count from now on, and those of the one before do not."""
        self.pool.sweeper.activate_seat(self.index, incarnation.number)
        self._why.pop(incarnation.number, None)
        self.active, self.policy = incarnation, policy

    def fall_back(self, incarnation: Incarnation, why: str) -> bool:
        """What waits goes on in the pool's own order. False: it did not count (any more)."""
        fell = self.active is incarnation
        if fell:
            self.active, self.policy = None, ""
            self.pool.sweeper.deactivate_seat(self.index, why)
            self.why_not(incarnation)
        return fell

    def happened(self, number: int, kind: str, reason: str) -> None:
        """The core says so of an incarnation."""
        decided = self.active is not None and self.active.number == number
        if kind != "beats":
            self._why.setdefault(number, reason)
        if decided:
            self.active, self.policy = None, ""
        if self.on_event is not None and (decided or kind == "beats"):
            self.on_event(number, kind, reason)

    def why_not(self, incarnation: Incarnation) -> str:
        """Why the core took that incarnation's rights; nothing: it has them."""
        self.pool.seats.take()
        return self._why.get(incarnation.number, "")

    def call(self, incarnation: Incarnation) -> None:
        """Its agent has something to read on its control socket, and may be asleep."""
        self.pool.sweeper.call_agent(self.index, incarnation.number)

    async def drop(self, incarnation: Incarnation) -> None:
        """Nobody uses it any more; its memory goes."""
        if incarnation.dropped:
            return
        incarnation.dropped = True
        self.fall_back(incarnation, "it left")
        order = wire.DropSeat(self.index, incarnation.number)

        async def dropped(worker: WorkerProcess) -> None:
            with contextlib.suppress(PeerDied):
                await worker.ask(order, ("drop seat", self.index, incarnation.number))

        await asyncio.gather(*(dropped(worker) for worker in self.pool.workers if not worker.gone))
        self._there.remove(incarnation)
        self.pool.sweeper.detach_seat(self.index, incarnation.number)
        self._why.pop(incarnation.number, None)
        incarnation.handed_over()

    def numbers(self, incarnation: Incarnation) -> dict[str, Any]:
        """agent_view.SeatStatistics, raw."""
        return _core.seat_numbers(self.pool.sweeper, self.index, incarnation.number)

    def pulse(self, incarnation: Incarnation) -> tuple[int, int, int]:
        """Refusals that no correct agent meets; ns that its agent was busy, and events that it saw, as it says."""
        return _core.seat_pulse(self.pool.sweeper, self.index, incarnation.number)

    def forget(self) -> None:
        """In a forked child."""
        for incarnation in self._there:
            incarnation.handed_over()

    def close(self) -> None:
        """The pool has stopped: nobody else is there."""
        self.forget()
        self._there.clear()
        self.active = None
