"""Parked versions: what a pool's workers hold stays within a budget of memory.

Theory of operation: a version that is parked keeps its name, its number, its line and its sealed file; only the workers
give up its kernel. Requests for it wait in the core among the blocked ones, and a worker that passes one by says that
the version is wanted; then it is loaded again from the same sealed bytes (and its snapshot, if its engine made one) and
they go on. Whoever was used least recently makes room. Counted are the sealed files, which stay, and what each worker's
own memory grew by when it loaded a version. When requests were served is seen from their number, ten times a second,
so that a budget costs a call nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from teal.errors import QuotaExceeded, TealError
from teal.host import wire

if TYPE_CHECKING:
    from teal.host.pool import Pool, Version

log = logging.getLogger("teal.host")

_LOOK = 0.1  # seconds between two looks at who is being used
_FINISHING = 0.001


class Parking:
    """Of one pool. All methods run on the daemon's loop; without a budget nothing is ever parked."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._budget = pool.settings.memory
        self._coming = 0  # bytes that loads under way were promised
        self._turn = asyncio.Lock()  # one comes or goes at a time: two could wait for each other's memory
        self._looker: asyncio.TimerHandle | None = None
        self.parkings = 0
        self.returns = 0

    def start(self) -> None:
        if self._budget is not None:
            self.watch()

    def watch(self) -> None:
        """From now on it is seen which versions are used."""
        if self._looker is None:
            self._look()

    def stop(self) -> None:
        if self._looker is not None:
            self._looker.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for version in self._pool.versions.values():
            requests = self._pool.sweeper.version(version.line)["requests"]
            if requests != version.seen_requests:
                version.seen_requests = requests
                version.used = loop.time()
        self._looker = loop.call_later(_LOOK, self._look)

    # ---- how much there is ---------------------------------------------------------------------------------------

    def used(self) -> int:
        """Bytes of the files of all versions, and of what workers, lent ones too, hold of those that are resident."""
        versions = self._pool.versions.values()
        held = sum(v.memory * self._pool.settings.workers for v in versions if not v.parked)
        return held + sum(v.nbytes for v in versions) + self._coming + self._pool.lending.bytes()

    async def admit(self, name: str, nbytes: int) -> int:
        """Room for a version whose file has so many bytes; to be given back with ``settled``. Raises QuotaExceeded."""
        if self._budget is None:
            return 0
        need = nbytes * (1 + self._pool.settings.workers)  # at least: its file, and its weights in every worker
        async with self._turn:
            await self._make_room(need, name, None)
            self._coming += need
        return need

    async def settled(self, promised: int, version: Version | None) -> None:
        """The load has ended; with a version its true size is known. Raises QuotaExceeded when that is too much."""
        self._coming -= promised
        if version is None or self._budget is None:
            return
        version.used = asyncio.get_running_loop().time()
        async with self._turn:
            await self._make_room(version.nbytes + version.memory * self._pool.settings.workers, version.name, version)

    async def _make_room(self, need: int, name: str, besides: Version | None) -> None:
        """Parks until ``need`` fits; ``besides``: counted in ``need`` already."""
        assert self._budget is not None
        counted = 0
        if besides is not None and self._pool.versions.get(besides.line) is besides and not besides.parked:
            counted = need
        left = [v for v in self._pool.versions.values() if v is not besides and _may_park(v)]
        left.sort(key=lambda v: v.used, reverse=True)
        while self.used() - counted + need > self._budget:
            if await self._pool.lending.give_way():
                continue
            if not left:
                raise QuotaExceeded(
                    f"{name!r} needs {need} bytes, and the models of pool {self._pool.name!r} have "
                    f"{self.used() - counted} of its budget of {self._budget} (memory=) with nothing left to park; "
                    "unload some, or raise the budget"
                )
            await self._park(left.pop())

    # ---- out and back --------------------------------------------------------------------------------------------

    async def _park(self, version: Version) -> None:
        """The turn is ours."""
        pool = self._pool
        if not pool.sweeper.park_version(version.line):
            return  # on its way out
        version.parked = True
        while pool.sweeper.version_running(version.line) > 0 and not pool.stopping:
            await asyncio.sleep(_FINISHING)
        await pool.drop_kernel(version.line, version.generation, parked=True)
        self.parkings += 1
        pool.changed()
        log.info("pool %s: parked %s version %d", pool.name, version.name, version.number)

    def wanted(self, report: wire.Wanted) -> None:
        """A worker was asked for it."""
        version = self._pool.versions.get(report.line)
        if version is not None and version.generation == report.generation:
            self._pool.spawn_task(self.bring_back(version))

    async def bring_back(self, version: Version) -> None:
        """Resident again, unless it is. What waits for it is cancelled when that cannot be."""
        pool = self._pool
        async with self._turn:
            if not version.parked or pool.versions.get(version.line) is not version or pool.stopping:
                return
            loop = asyncio.get_running_loop()
            try:
                if self._budget is not None:
                    await self._make_room(version.memory * pool.settings.workers, version.name, version)
                start = loop.time()
                loaded = await pool.residence.load(
                    version.order, version.descriptors, wire.LOAD_TIMEOUT, start + wire.LOAD_TIMEOUT
                )
            except TealError as error:
                log.error("pool %s: %s version %d cannot be brought back: %s; what waits for it is cancelled",
                          pool.name, version.name, version.number, error)  # fmt: skip
                pool.sweeper.cancel_version(version.line)
                await pool.drop_kernel(version.line, version.generation)
                return
            version.memory = max(version.memory, loaded.memory)
            version.used = loop.time()
            version.parked = False
            self.returns += 1
            pool.sweeper.unpark_version(version.line)
            pool.changed()
            log.info("pool %s: %s version %d is back after %.0f ms", pool.name, version.name, version.number,
                     1e3 * (loop.time() - start))  # fmt: skip

    async def out_of_here(self, version: Version, *, force: bool) -> None:
        """Before it is unloaded: what waits for it is run first, or cancelled."""
        if not version.parked:
            return
        if force:
            self._pool.sweeper.cancel_version(version.line)
        elif self._pool.sweeper.version_in_flight(version.line) > 0:
            await self.bring_back(version)


def _may_park(version: Version) -> bool:
    """Builtins have nothing to give back; a device model's callers talk to the device past the workers; a kernel that
    is not pure may have a state that would be lost."""
    return not version.parked and version.memory > 0 and version.order.device is None and version.pure
