"""Spare workers: processes that are ready to take the place of one that dies.

Theory of operation: a spare is a worker process without a place in the pool. It has started, and holds the models of
engines (an engine's model has no state and no effects before it is called; a function's instance may have both, so
those are made when the spare is taken up), and has run each of them once on inputs like those that the workers are
called with (kernel/warming.py), as an engine's first run costs several others. When a worker dies, a spare is told its
index, the sessions and what else there is to hold, and opened: what is left of a restart is what the spare could not do
beforehand. A new spare is started once it serves. A spare that dies costs nobody a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from teal.errors import PeerDied
from teal.host import wire
from teal.host.engines import ENGINES
from teal.host.fate import how_it_ended
from teal.host.process import WorkerProcess
from teal.host.residence import SURVIVED

if TYPE_CHECKING:
    from teal.host.pool import Pool
    from teal.host.residence import Order
    from teal.kernel.warming import Inputs

log = logging.getLogger("teal.host")

SPARE = -1  # in place of an index
_AGAIN = (0.0, 0.5, 2.0, 10.0)  # seconds before the next try when spares die before they are ready


class Spares:
    """Of one pool. All methods run on the daemon's loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._processes: list[WorkerProcess] = []
        self._preparing: Counter[WorkerProcess] = Counter()  # what each has still to do before it holds everything
        self._warming = asyncio.Lock()
        self._deaths = 0
        self.used = 0

    @property
    def ready(self) -> int:
        """How many hold all that they can. One that does not yet may be taken as well, and saves less."""
        return sum(spare.ready and not spare.gone and not self._preparing[spare] for spare in self._processes)

    def fill(self) -> None:
        """Starts as many as are missing."""
        for _ in range(self._pool.settings.spares - len(self._processes)):
            spare = WorkerProcess(SPARE, self._pool.reported)
            try:
                spare.start(self._pool.sweeper.pool_fd, self._pool.settings.cores, self._died)
            except OSError as error:
                log.error("pool %s: starting a spare worker: %s", self._pool.name, error)
                return
            self._processes.append(spare)
            self._prepares(spare, self._prepare(spare))

    def _prepares(self, spare: WorkerProcess, work: Coroutine[Any, Any, None]) -> None:
        def done(_: asyncio.Task[None]) -> None:
            self._preparing -= Counter((spare,))

        self._preparing[spare] += 1
        self._pool.spawn_task(work).add_done_callback(done)

    async def _prepare(self, spare: WorkerProcess) -> None:
        with contextlib.suppress(PeerDied):
            await spare.until_ready()
            self._deaths = 0
            for order in self._pool.residence.resident():
                self._load(spare, order)

    def load(self, order: Order) -> None:
        """A version became resident."""
        for spare in self._processes:
            if spare.ready and not spare.gone:
                self._load(spare, order)

    def _load(self, spare: WorkerProcess, order: Order) -> None:
        if order.load.kernel in ENGINES:
            self._prepares(spare, self._loaded(spare, order))

    async def _loaded(self, spare: WorkerProcess, order: Order) -> None:
        with contextlib.suppress(PeerDied):
            await self._pool.residence.load_in_spare(spare, order)
            await self._warmed(spare, order, list(order.called_with))

    def warm(self, worker: WorkerProcess, order: Order, inputs: Inputs) -> None:
        """The worker is about to run its version with such inputs."""
        for spare in self._processes:
            if spare.ready and not spare.gone:
                self._prepares(spare, self._warmed_later(spare, worker, order, inputs))

    async def _warmed_later(self, spare: WorkerProcess, worker: WorkerProcess, order: Order, inputs: Inputs) -> None:
        await asyncio.sleep(SURVIVED)
        if not worker.gone:
            await self._warmed(spare, order, [inputs])

    async def _warmed(self, spare: WorkerProcess, order: Order, several: list[Inputs]) -> None:
        """One that does not hold it yet says so at once, and comes here again when it has loaded it."""
        async with self._warming:
            for inputs in several:
                with contextlib.suppress(PeerDied, TimeoutError):
                    async with asyncio.timeout(order.timeout):
                        await spare.ask(wire.WarmUp(*order.key, inputs), ("warmed", *order.key))

    def drop_kernel(self, line: int, generation: int) -> None:
        """No spare is to hold it any more."""
        for spare in self._processes:
            spare.drop_kernel(line, generation)
            spare.send(wire.DropKernel(line, generation))

    def take(self, index: int) -> WorkerProcess | None:
        """A spare that is now the worker of that index, to be told everything else; None: there is none."""
        for spare in self._processes:
            if spare.ready and not spare.gone:
                self._processes.remove(spare)
                spare.index = index
                spare.on_death = self._pool.died
                spare.send(wire.Adopt(index))
                self.used += 1
                return spare
        return None

    def _died(self, spare: WorkerProcess, status: int, loading: tuple[int, int] | None) -> None:
        if spare in self._processes:
            self._processes.remove(spare)
        if self._pool.stopping:
            return
        log.warning("spare worker (process %d) of pool %s ended: %s; starting another",
                    spare.pid, self._pool.name, how_it_ended(status)[0])  # fmt: skip
        self._deaths += 1
        delay = _AGAIN[min(self._deaths - 1, len(_AGAIN) - 1)]
        asyncio.get_running_loop().call_later(delay, self._fill_again)

    def _fill_again(self) -> None:
        if not self._pool.stopping:
            self.fill()

    def forget(self) -> None:
        """In a forked child."""
        for spare in self._processes:
            spare.forget()

    async def stop(self) -> None:
        """Ends them all; they run nothing."""
        for spare in self._processes:
            spare.stopping = True
            spare.kill()
        while any(not spare.gone for spare in self._processes):
            await asyncio.sleep(0.002)
