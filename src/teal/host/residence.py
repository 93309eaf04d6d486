"""What every worker of a pool is to hold, and how it comes there.

Theory of operation: an order stays here from the moment a load begins until its version is dropped, so that a worker
that replaces another one can be given the same. A version that kills workers while they load it is not told to their
replacements: the load fails, and one that was resident already is given up after the third time. A load has a time; a
worker that still sits in it then finishes what it runs, takes no more, and is replaced: nothing else can end a thread
that does not come back. Its calls go on meanwhile, and what waits is run by the next worker.

An engine's version is loaded by one worker first: it makes the optimised form (snapshot.py) that the others, and those
that replace them, are given along with the file. One that was found on disk (cache.py) is tried by one worker first as
well: what it cannot begin with is removed there, and it makes another.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from teal.errors import DeadlineExceeded, PeerDied, TealError
from teal.host import wire
from teal.host.cache import Cache, Entry
from teal.host.engines import ENGINES
from teal.host.process import WorkerProcess
from teal.host.snapshot import Beginning, Snapshot, kept
from teal.kernel.warming import MOST, Inputs

if TYPE_CHECKING:
    from teal.host.lending import Lent
    from teal.host.spares import Spares

log = logging.getLogger("teal.host")

_DEADLY = 3  # workers that a resident version may kill while they load it
_WORKER_PATIENCE = 10.0  # seconds a load waits for a worker while all are being replaced
SURVIVED = 0.5  # seconds after which a worker did not die of how it was called
_LAST_REQUEST = 10.0  # seconds a worker that is given up may take for what it runs


class Workers(Protocol):
    """What this needs of a pool."""

    name: str
    stopping: bool
    workers: list[WorkerProcess]
    spares: Spares
    lent: list[Lent]
    cache: Cache

    @property
    def everyone(self) -> list[WorkerProcess]: ...

    def spawn_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


@dataclass(slots=True, eq=False)
class Order:
    """What a new worker is told of a version."""

    load: wire.LoadKernel
    fds: tuple[int, ...]  # of its file and its sealed weights; its version's
    timeout: float
    key: tuple[int, int]
    snapshot: Snapshot | None = None
    entry: Entry | None = None  # its place on disk
    proven: bool = True  # a worker has begun with the snapshot
    note: str = ""  # what became of one on disk
    keeping: asyncio.Task[None] | None = None  # a snapshot that is being looked at
    called_with: list[Inputs] = field(default_factory=list)  # dtypes and shapes of inputs

    def close(self) -> None:
        if self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = None


class Residence:
    """Orders by version line. All methods run on the daemon's loop."""

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        self._orders: dict[int, Order] = {}
        self._killed: dict[int, int] = {}  # by line: workers that died while they loaded it
        self._resident: set[int] = set()  # lines that every worker held once
        self._parked: dict[int, Snapshot] = {}  # of versions that will come back

    async def load(
        self,
        order: wire.LoadKernel,
        fds: tuple[int, ...],
        timeout: float,
        until: float,
        beginning: Beginning | None = None,
    ) -> wire.Loaded:
        """Loads a version in every worker, until that time of the loop at most. Raises what the first one says.

        ``beginning``: with an optimised form of the same file, which is this version's from now on.
        """
        begin = beginning or Beginning(self._parked.pop(order.line, None))
        key = (order.line, order.generation)
        mine = Order(order, fds, timeout, key, begin.snapshot, begin.entry, begin.proven, begin.note)
        self._orders[order.line] = mine
        self._killed.pop(order.line, None)
        for _ in range(_DEADLY):
            workers = await self._present()
            results = await self._load_everywhere(workers, mine, until)
            loaded = [result for result in results if isinstance(result, wire.Loaded)]
            for report in loaded:
                if report.error is not None:
                    wire.raise_failure(report.error)
            deaths = [result for result in results if isinstance(result, PeerDied)]
            for result in results:
                if isinstance(result, TimeoutError):
                    raise self._too_slow(mine, workers)
                if isinstance(result, BaseException) and not isinstance(result, PeerDied):
                    raise result
            if self._killed.get(order.line, 0) > 0:
                raise PeerDied("worker", f"{deaths[0].how if deaths else 'died'} while it loaded {order.name!r}")
            if loaded:  # a worker that died of something else: its replacement loads the version before it is opened
                self._resident.add(order.line)
                self._pool.spares.load(mine)
                loaded[0].note = "; ".join(filter(None, (mine.note, loaded[0].note)))
                return loaded[0]
        raise PeerDied("worker", f"all workers of pool {self._pool.name} died before they could load {order.name!r}")

    async def _load_everywhere(
        self, workers: list[WorkerProcess], order: Order, until: float
    ) -> list[wire.Loaded | BaseException]:
        alone = order.load.kernel in ENGINES and (order.snapshot is None or not order.proven)
        results: list[wire.Loaded | BaseException] = []
        for group in (workers[:1], workers[1:]) if alone else (workers,):
            loads = (self._load_in(worker, order, until) for worker in group)
            results += await asyncio.gather(*loads, return_exceptions=True)
            if any(isinstance(result, BaseException) or result.error is not None for result in results):
                break
            if order.keeping is not None and (len(workers) > 1 or not order.proven):
                await order.keeping
            if not order.proven:
                await self._prove(order, results[0])
        return results

    async def _prove(self, order: Order, first: wire.Loaded | BaseException) -> None:
        """A snapshot from disk: the first worker has begun with it, or it is of no use."""
        order.proven = True
        if not isinstance(first, wire.Loaded) or not first.restored:
            order.close()
            why = first.note if isinstance(first, wire.Loaded) else str(first)
            await self._pool.cache.refuse(order.entry, why)

    async def _load_in(self, worker: WorkerProcess, order: Order, until: float) -> wire.Loaded:
        kept = order.snapshot
        load = msgspec.structs.replace(
            order.load,
            wants_snapshot=order.load.kernel in ENGINES
            and order.keeping is None
            and (kept is None or not order.proven),
            snapshot_key="" if kept is None else kept.key,
            snapshot_parts=[] if kept is None else kept.names,
        )
        fds = order.fds + (() if kept is None else kept.fds)
        async with asyncio.timeout_at(until):
            return await worker.load(load, fds)

    def keep(self, report: wire.Optimised, fds: list[int]) -> None:
        """Takes an optimised form over, which a worker made of a version that it is loading."""
        order = self._orders.get(report.line)
        wanted = order is not None and order.key == (report.line, report.generation) and order.keeping is None
        if order is None or not wanted or (order.snapshot is not None and order.proven):
            for fd in fds:
                os.close(fd)
            return
        order.keeping = self._pool.spawn_task(self._keep(order, report, fds))

    async def _keep(self, order: Order, report: wire.Optimised, fds: list[int]) -> None:
        try:
            taking = functools.partial(kept, report.key, report.parts, fds, whole=report.whole)
            made = await asyncio.get_running_loop().run_in_executor(None, taking)
        except (TealError, OSError) as error:
            log.error("pool %s: the snapshot of %s is not kept: %s", self._pool.name, order.load.name, error)
            return
        if self._orders.get(order.key[0]) is order:
            if not order.proven:  # the worker made this one because that from disk was of no use
                order.close()
                order.proven = True
                await self._pool.cache.refuse(order.entry, f"made anew by {made.key[:100]}")
            order.snapshot = made
            if made.whole:
                self._pool.cache.store(order.entry, made)
        else:  # dropped meanwhile
            made.close()

    def snapshot(self, line: int) -> Snapshot | None:
        """The optimised form of a version, which stays the version's."""
        order = self._orders.get(line)
        return self._parked.get(line) if order is None else order.snapshot

    def close(self) -> None:
        """At the end of the pool."""
        for order in self._orders.values():
            order.close()
        self._orders.clear()
        while self._parked:
            self._parked.popitem()[1].close()

    def _too_slow(self, order: Order, workers: list[WorkerProcess]) -> DeadlineExceeded:
        name, took = order.load.name, f"{order.timeout:g} s"
        stuck = [worker for worker in workers if worker.loading == order.key]
        for worker in stuck:
            log.warning("worker %d (process %d) of pool %s still loads %s after %s: replacing it once it has finished "
                        "what it runs", worker.index, worker.pid, self._pool.name, name, took)  # fmt: skip
            self._pool.spawn_task(self._give_up(worker))
        if stuck:
            return DeadlineExceeded(
                f"{name!r} was not loaded within {took} and is given up; the worker that sits in it is replaced. If it "
                "only needs longer: load(timeout=…)"
            )
        return DeadlineExceeded(
            f"{name!r} was not loaded within {took}: its pool is busy with another load; try again, or load(timeout=…)"
        )

    async def _give_up(self, worker: WorkerProcess) -> None:
        worker.send(wire.Quit())
        loop = asyncio.get_running_loop()
        until = loop.time() + _LAST_REQUEST
        while not worker.gone and loop.time() < until:
            await asyncio.sleep(0.005)
        worker.kill()

    async def _present(self) -> list[WorkerProcess]:
        """The workers there are. Waits while all are being replaced. Raises PeerDied."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _WORKER_PATIENCE
        while not (workers := [worker for worker in self._pool.workers if not worker.gone]):
            if loop.time() > until or self._pool.stopping:
                raise PeerDied("worker", f"pool {self._pool.name} has none now; it is being restarted")
            await asyncio.sleep(0.005)
        return workers

    def resident(self) -> list[Order]:
        """What every worker holds."""
        return [order for line, order in self._orders.items() if line in self._resident]

    async def load_in_spare(self, spare: WorkerProcess, order: Order) -> None:
        """Raises PeerDied."""
        try:
            report = await self._load_in(spare, order, asyncio.get_running_loop().time() + order.timeout)
        except TimeoutError:
            spare.kill()
            return
        if report.error is not None:
            log.error("pool %s: %s does not load in a spare worker: %s",
                      self._pool.name, order.load.name, report.error.message)  # fmt: skip

    async def load_in_lent(self, worker: WorkerProcess, key: tuple[int, int]) -> wire.Loaded | None:
        """None: it is not resident (any more). Raises PeerDied, TimeoutError (it is killed), and what the load does."""
        order = self._orders.get(key[0])
        if order is None or order.key != key or key[0] not in self._resident:
            return None
        try:
            report = await self._load_in(worker, order, asyncio.get_running_loop().time() + order.timeout)
        except TimeoutError:
            worker.kill()
            raise
        if report.error is not None:
            wire.raise_failure(report.error)
        return report

    def used(self, worker: WorkerProcess, report: wire.Used) -> None:
        """Spare workers are to have run with such inputs once, if the one that was called with them survives it."""
        order = self._orders.get(report.line)
        if order is not None and order.key == (report.line, report.generation):
            asyncio.get_running_loop().call_later(SURVIVED, self._survived, worker, order, report.inputs)
            self._pool.spares.warm(worker, order, report.inputs)

    def _survived(self, worker: WorkerProcess, order: Order, inputs: Inputs) -> None:
        if not worker.gone and inputs not in order.called_with and len(order.called_with) < MOST:
            order.called_with.append(inputs)

    async def load_all(self, worker: WorkerProcess) -> None:
        """In a new worker: everything that is to be resident, what is asked for meanwhile included. Raises PeerDied."""
        held: set[tuple[int, int]] = set()
        while missing := [order for order in self._orders.values() if order.key not in held]:
            for order in missing:
                held.add(order.key)
                if self._orders.get(order.key[0]) is not order:
                    continue  # dropped while the one before it was being loaded
                await self._load_again(worker, order)

    async def _load_again(self, worker: WorkerProcess, order: Order) -> None:
        name = order.load.name
        try:
            report = await self._load_in(worker, order, asyncio.get_running_loop().time() + order.timeout)
        except TimeoutError:
            worker.kill()  # it runs nothing yet; its death is blamed on what it was loading
            raise PeerDied("worker", f"it did not load {name!r} within {order.timeout:g} s") from None
        if report.error is None:
            self._killed.pop(order.key[0], None)
        else:
            log.error("pool %s: %s does not load in a new worker: %s", self._pool.name, name, report.error.message)

    def blame(self, line: int, generation: int) -> None:
        """A worker died while it loaded this version."""
        order = self._orders.get(line)
        if order is None or order.key != (line, generation):
            return
        if not order.proven:  # it may be the snapshot from disk that killed it: load() tries without
            order.close()
            order.proven, why = True, "a worker died of it"
            order.note = f"its snapshot on disk was not used, and is removed: {why}"
            self._pool.spawn_task(self._pool.cache.refuse(order.entry, why))
            return
        self._killed[line] = self._killed.get(line, 0) + 1
        if line not in self._resident:
            self._orders.pop(line).close()  # load() says so to who asked for it
        elif self._killed[line] >= _DEADLY:
            self._orders.pop(line).close()
            log.error("pool %s: %s killed %d workers that loaded it; new workers do without it: unload it, or load "
                      "another version", self._pool.name, order.load.name, _DEADLY)  # fmt: skip

    def forget(self, line: int, generation: int, *, parked: bool = False) -> None:
        """New workers do without it. ``parked``: it will come back, to its snapshot."""
        if not parked and (snapshot := self._parked.pop(line, None)) is not None:
            snapshot.close()
        if (order := self._orders.pop(line, None)) is not None:
            if parked and order.snapshot is not None:
                self._parked[line], order.snapshot = order.snapshot, None
            order.close()
        self._killed.pop(line, None)
        self._resident.discard(line)
        for worker in self._pool.everyone:
            worker.drop_kernel(line, generation)
        for lent in self._pool.lent:
            lent.held.pop((line, generation), None)
            lent.refused.discard((line, generation))
        self._pool.spares.drop_kernel(line, generation)
