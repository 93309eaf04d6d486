"""A pool's seat, as the host keeps it: the pair of regions that each agent gets anew, and who holds them.

Theory of operation: an incarnation is made when an agent is about to sit down (attach), shown to every worker, and
only then handed to the agent. The host makes it the one that counts (activate); the core takes that back when the
agent's heart stops or a request waits too long, and the host when the process dies or is sent away (fall_back): in
each case what is queued goes on in the pool's own order. Two incarnations may be there at once, for an upgrade; one
counts. It is dropped once nobody decides or reads there any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from teal.errors import PeerDied
from teal.host import wire

if TYPE_CHECKING:
    from teal.host.pool import Pool
    from teal.host.process import WorkerProcess


@dataclass(slots=True, eq=False)
class Incarnation:
    """Descriptors are the host's; ``agent_view`` can be mapped for reading only."""

    number: int
    view: int
    agent_view: int
    desk: int
    dropped: bool = False

    def close(self) -> None:
        for fd in (self.view, self.agent_view, self.desk):
            with contextlib.suppress(OSError):
                os.close(fd)


class Seat:
    """Of one pool. All methods run on the daemon's loop."""

    def __init__(self, pool: Pool, index: int = 0) -> None:
        self._pool = pool
        self.index = index
        self.active: Incarnation | None = None
        self._there: list[Incarnation] = []

    async def attach(self, link: str) -> Incarnation:
        """A new incarnation that every worker has. Raises what the core does (memory, descriptors)."""
        number, view, agent_view, desk = self._pool.sweeper.attach_seat(self.index, link)
        incarnation = Incarnation(number, view, agent_view, desk)
        self._there.append(incarnation)
        await asyncio.gather(*(self._shown(worker, incarnation) for worker in self._pool.workers if not worker.gone))
        return incarnation

    async def _shown(self, worker: WorkerProcess, incarnation: Incarnation) -> None:
        order = wire.AddSeat(self.index, incarnation.number)
        with contextlib.suppress(PeerDied):
            await worker.ask(order, ("add seat", self.index, incarnation.number), (incarnation.view, incarnation.desk))

    def tell(self, worker: WorkerProcess) -> None:
        """A worker that replaces another one, before it is opened."""
        for incarnation in self._there:
            worker.send(wire.AddSeat(self.index, incarnation.number), (incarnation.view, incarnation.desk))

    def activate(self, incarnation: Incarnation) -> None:
        """Its decisions count from now on, and those of the one before do not."""
        self._pool.sweeper.activate_seat(self.index, incarnation.number)
        self.active = incarnation

    def fall_back(self, incarnation: Incarnation) -> bool:
        """What waits goes on in the pool's own order. False: it did not count (any more)."""
        fell = self.active is incarnation
        if fell:
            self.active = None
            self._pool.sweeper.deactivate_seat(self.index, incarnation.number)
        return fell

    async def drop(self, incarnation: Incarnation) -> None:
        """Nobody uses it any more; its memory goes."""
        if incarnation.dropped:
            return
        incarnation.dropped = True
        self.fall_back(incarnation)
        order = wire.DropSeat(self.index, incarnation.number)

        async def dropped(worker: WorkerProcess) -> None:
            with contextlib.suppress(PeerDied):
                await worker.ask(order, ("drop seat", self.index, incarnation.number))

        await asyncio.gather(*(dropped(worker) for worker in self._pool.workers if not worker.gone))
        self._there.remove(incarnation)
        self._pool.sweeper.free_seat(self.index, incarnation.number)
        incarnation.close()

    def bound(self, max_wait_ns: int, local_fast_path: bool) -> None:
        """How long a request may wait for a decision, and whether one that finds an idle worker waits for none."""
        self._pool.sweeper.set_seat(self.index, max_wait_ns, local_fast_path)

    def state(self) -> dict[str, Any]:
        """active, why (it is not), refused (by reason), desk (what the agent says of itself)."""
        found: dict[str, Any] = self._pool.sweeper.seat_state(self.index)
        return found

    def fallen(self) -> dict[str, int]:
        """heart_ms: since its last beat; waited_ms: of the request that waited longest; requests: that were queued."""
        found: dict[str, int] = self._pool.sweeper.seat_fallen(self.index)
        return found

    def numbers(self) -> dict[str, Any]:
        """Of the incarnation that counts, or counted last; records.AgentStatistics."""
        found: dict[str, Any] = self._pool.sweeper.seat(self.index)
        return found

    def forget(self) -> None:
        """In a forked child."""
        for incarnation in self._there:
            incarnation.close()

    def close(self) -> None:
        """The pool has stopped: nobody else is there."""
        for incarnation in self._there:
            incarnation.close()
        self._there.clear()
        self.active = None
