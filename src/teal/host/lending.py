"""Workers that a pool lends to others (``helps=``): its idle workers' time for what waits elsewhere.

Theory of operation: for each of its workers and each pool that it helps the lender has one more process: a worker of
the helped pool, on the lender's cores and a little less urgent than its own. So a model runs in a process of the pool
that it was loaded for, whoever's time it takes, and what goes wrong there is the matter of that process. When it may
take a request is decided in the core (core/host/lent.cpp); here is what it holds. That is within the lender's budget:
those of the helped pool's models that were used last, as long as they fit beside the lender's own, which drive them out
when they need the room. Only what is pure is lent: anything else may have a state, or effects that a second process
was not meant to have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from teal.errors import PeerDied, TealError
from teal.host import wire
from teal.host.process import WorkerProcess

if TYPE_CHECKING:
    from teal.host.pool import Pool, Version

log = logging.getLogger("teal.host")

Key = tuple[int, int]  # line and generation of a version

_AGAIN = (0.0, 0.2, 1.0, 5.0)  # seconds before the next start when one dies without having held anything


@dataclass(slots=True, eq=False)
class Lent:
    """One lent worker. held: bytes of its own that each version takes there; refused: versions that it does not hold,
    as they did not load, killed it, or turned out too large."""

    lender: str
    helped: Pool
    index: int  # among the workers of the helped pool
    its_worker: int  # the lender's worker whose time it uses
    process: WorkerProcess
    held: dict[Key, int] = field(default_factory=dict)
    refused: set[Key] = field(default_factory=set)
    deaths: int = 0

    @property
    def there(self) -> bool:
        return self.process.open and not self.process.gone


class Lending:
    """Of one pool, to those that it helps. All methods run on the daemon's loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lent: list[Lent] = []
        self._coming = 0  # bytes that a load under way may take
        self._turn = asyncio.Lock()  # one comes or goes at a time
        self._looking = False
        self._again = False

    # ---- processes -----------------------------------------------------------------------------------------------

    async def start(self, pools: Mapping[str, Pool]) -> None:
        """Once all pools have started. Raises PeerDied when a process cannot start."""
        for helped in (pools[name] for name in self._pool.settings.helps):
            helped.helpers.append(self)
            helped.parking.watch()
            for its_worker in range(self._pool.settings.workers):
                index = helped.settings.workers + len(helped.lent)
                helped.sweeper.lend(index, self._pool.sweeper, its_worker)
                lent = Lent(self._pool.name, helped, index, its_worker, WorkerProcess(index, helped.reported))
                helped.lent.append(lent)
                self._lent.append(lent)
                self._spawn(lent)
        await asyncio.gather(*(self._open(lent) for lent in self._lent))

    def _spawn(self, lent: Lent) -> None:
        lent.held.clear()
        lent.process = process = WorkerProcess(lent.index, lent.helped.reported)
        view, loans = self._pool.sweeper.loans_fds()
        try:
            process.start(
                lent.helped.sweeper.pool_fd, self._pool.settings.cores, self._died, (view, loans, lent.its_worker)
            )
        finally:
            os.close(view)
        for session in lent.helped.sessions.values():
            lent.helped.tell_session(process, session)

    async def _open(self, lent: Lent) -> None:
        process = lent.process
        await process.until_ready()
        process.open = True
        process.send(wire.Open())
        self.look()

    def _died(self, process: WorkerProcess, status: int, loading: Key | None) -> None:
        lent = next(lent for lent in self._lent if lent.process is process)
        helped = lent.helped
        ran = helped.bury(process, status, f"lent by pool {self._pool.name}")
        helped.sweeper.bury_lent(lent.index, process.pid)
        if helped.stopping or self._pool.stopping:
            return
        if loading is not None and not ran:  # else it rather died of that
            lent.refused.add(loading)
        lent.deaths = 0 if lent.held else lent.deaths + 1
        delay = _AGAIN[min(lent.deaths, len(_AGAIN) - 1)]
        self._pool.spawn_task(self._replace(lent, delay))

    async def _replace(self, lent: Lent, delay: float) -> None:
        await asyncio.sleep(delay)
        if lent.helped.stopping or self._pool.stopping:
            return
        try:
            self._spawn(lent)
        except OSError as error:
            log.error("pool %s: starting a worker for pool %s: %s; trying again",
                      self._pool.name, lent.helped.name, error)  # fmt: skip
            self._pool.spawn_task(self._replace(lent, _AGAIN[-1]))
            return
        with contextlib.suppress(PeerDied):  # its own death starts the next attempt
            await self._open(lent)

    # ---- what they hold ------------------------------------------------------------------------------------------

    def bytes(self) -> int:
        """Of this pool's budget: what its lent workers hold, and what they are about to."""
        return self._coming + sum(sum(lent.held.values()) for lent in self._lent)

    def helped(self) -> int:
        """Requests of other pools that were run here."""
        return sum(lent.helped.sweeper.worker(lent.index)["requests"] for lent in self._lent)

    def look(self) -> None:
        """Something has changed about what there is to hold, or about the room for it."""
        if not self._lent or self._pool.stopping:
            return
        self._again = True
        if not self._looking:
            self._looking = True
            self._pool.spawn_task(self._fill())

    async def _fill(self) -> None:
        try:
            while self._again:
                self._again = False
                for lent in self._lent:
                    for version in sorted(lent.helped.versions.values(), key=lambda v: v.used, reverse=True):
                        await self._lend(lent, version)
        finally:
            self._looking = False

    async def _lend(self, lent: Lent, version: Version) -> None:
        key = (version.line, version.generation)
        async with self._turn:
            if not lent.there or key in lent.held or key in lent.refused or not self._lendable(lent, version):
                return
            if not self._fits(version.memory):
                return
            self._coming = version.memory
            process = lent.process
            try:
                report = await lent.helped.residence.load_in_lent(process, key)
            except PeerDied:
                return  # _died() says what of
            except TimeoutError:
                lent.refused.add(key)
                return
            except TealError as error:
                lent.refused.add(key)
                log.error("pool %s: %s of pool %s does not load in a worker that is lent: %s",
                          self._pool.name, version.name, lent.helped.name, error)  # fmt: skip
                return
            finally:
                self._coming = 0
            # It may have run one of these and died of it before we are here: the next process holds nothing yet.
            if report is None or lent.process is not process or not lent.there or not self._lendable(lent, version):
                return
            lent.held[key] = max(report.memory, version.memory)
            if not self._fits(0):
                lent.refused.add(key)
                await self._drop(lent, key)

    def _lendable(self, lent: Lent, version: Version) -> bool:
        return (
            lent.helped.versions.get(version.line) is version
            and not version.parked
            and version.pure
            and version.order.device is None
        )

    def _fits(self, more: int) -> bool:
        budget = self._pool.settings.memory
        return budget is None or self._pool.parking.used() + more <= budget

    async def give_way(self) -> bool:
        """Gives one version up, the one that takes most: the lender's own need the room. False: there is none."""
        async with self._turn:
            found = [(nbytes, lent, key) for lent in self._lent for key, nbytes in lent.held.items() if nbytes > 0]
            if not found:
                return False
            _, lent, key = max(found, key=lambda one: one[0])
            await self._drop(lent, key)
        return True

    async def _drop(self, lent: Lent, key: Key) -> None:
        lent.process.drop_kernel(*key)
        with contextlib.suppress(PeerDied):
            await lent.process.ask(wire.DropKernel(*key), ("drop kernel", *key))
        lent.held.pop(key, None)
