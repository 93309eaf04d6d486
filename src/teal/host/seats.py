"""The seats of one pool. The core has four; an agent sits at the first one, which all workers and models belong to.

Theory of operation: the core tells what happened at seats (an agent was put off, a frozen one beats again) through an
eventfd, so that nobody has to look now and then; each event goes to its seat, and from there to the crew that sits
there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from teal import _core
from teal.host.seat import Seat

if TYPE_CHECKING:
    from teal.host.pool import Pool
    from teal.host.process import WorkerProcess


class Seats:
    """All of a pool's; methods run on the daemon's loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._all = tuple(Seat(pool, index) for index in range(_core.MAX_SEATS))
        self._events = -1  # the core's to close
        self._loop: asyncio.AbstractEventLoop | None = None

    def __getitem__(self, index: int) -> Seat:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def listen(self) -> None:
        """From here on what happens reaches the crews. Raises what the core does (descriptors)."""
        if self._events < 0:
            self._events = self._pool.sweeper.seat_events_fd()
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._events, self._hear)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._events, 8)
        self.take()

    def take(self) -> None:
        """Passes on what has happened by now."""
        for index, number, kind, reason, _ in self._pool.sweeper.take_seat_events():
            self._all[index].happened(number, kind, reason)

    def tell(self, worker: WorkerProcess) -> None:
        """A worker that replaces another one, before it is opened."""
        for seat in self._all:
            seat.tell(worker)

    async def name_model(self, index: int, name: str) -> None:
        """Before the first request of that model comes; returns when the agents here know it."""
        for seat in self._all:
            await seat.name_model(index, name)

    def name_client(self, index: int, uid: int, pid: int) -> None:
        """Whose session that is."""
        for seat in self._all:
            seat.name_client(index, f"{uid}/{pid}")

    def forget(self) -> None:
        """In a forked child."""
        for seat in self._all:
            seat.forget()

    def close(self) -> None:
        """The pool has stopped: nobody else is there."""
        if self._events >= 0 and self._loop is not None:
            self._loop.remove_reader(self._events)
            self._events = -1
        for seat in self._all:
            seat.close()
