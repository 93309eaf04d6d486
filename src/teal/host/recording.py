"""A recording of what a pool does for a while: `teal trace`.

Theory of operation: a region is made, shown to every worker, and taken back from them when the time is over; then it is
read. Between recordings nobody has one, and nothing is paid.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from teal import _core
from teal.errors import Busy, InvalidArgument, PeerDied
from teal.host import argument, wire

if TYPE_CHECKING:
    from teal.host.pool import Pool
    from teal.host.process import WorkerProcess

_LONGEST = 60.0  # seconds
_MOST_EVENTS = 1 << 22


class Recording:
    """Of one pool, one at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._trace: _core.Trace | None = None

    async def record(self, seconds: float, events: int) -> dict[str, Any]:
        """What trace_file.document() takes. Raises InvalidArgument, Busy, QuotaExceeded (no memory for it)."""
        if not 0 < argument.seconds(seconds, "$.seconds") <= _LONGEST:
            raise InvalidArgument(f"{seconds}, expected more than 0 and at most {_LONGEST:g} seconds", path="$.seconds")
        argument.whole(events, 1, _MOST_EVENTS, "$.events")
        if self._trace is not None:
            raise Busy(f"pool {self._pool.name!r} is being recorded already; try again when that is over")
        self._trace = trace = _core.Trace(events)
        try:
            for worker in self._pool.everyone:
                worker.send(wire.AddTrace(), (trace.fd,))
            self._pool.sweeper.set_trace(trace)
            await asyncio.sleep(seconds)
        finally:
            self._pool.sweeper.set_trace(None)
            await asyncio.gather(*(self._given_back(worker) for worker in self._pool.everyone if not worker.gone))
            self._trace = None
        return {
            "pool": self._pool.name,
            "policy": self._pool.seat.policy,
            "workers": {str(worker.index): worker.pid for worker in self._pool.everyone},
            "names": {str(line): version.name for line, version in self._pool.versions.items()},
            "events": await asyncio.to_thread(trace.events),
            "left_out": trace.left_out,
        }

    async def _given_back(self, worker: WorkerProcess) -> None:
        with contextlib.suppress(PeerDied):
            await worker.ask(wire.DropTrace(), ("drop trace", 0, 0))
