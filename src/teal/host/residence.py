"""What every worker of a pool is to hold, and how it comes there.

Theory of operation: an order stays here from the moment a load begins until its version is dropped, so that a worker
that replaces another one can be given the same. A version that kills workers while they load it is not told to their
replacements: the load fails, and one that was resident already is given up after the third time. A load has a time; a
worker that still sits in it then finishes what it runs, takes no more, and is replaced: nothing else can end a thread
that does not come back. Its calls go on meanwhile, and what waits is run by the next worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from teal.errors import DeadlineExceeded, PeerDied
from teal.host import wire
from teal.host.process import WorkerProcess

log = logging.getLogger("teal.host")

_DEADLY = 3  # workers that a resident version may kill while they load it
_WORKER_PATIENCE = 10.0  # seconds a load waits for a worker while all are being replaced
_LAST_REQUEST = 10.0  # seconds a worker that is given up may take for what it runs


class Workers(Protocol):
    """What this needs of a pool."""

    name: str
    stopping: bool
    workers: list[WorkerProcess]

    def spawn_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


@dataclass(frozen=True, slots=True)
class _Order:
    load: wire.LoadKernel
    fds: tuple[int, ...]  # of its file and its sealed weights; its version's
    timeout: float
    key: tuple[int, int]


class Residence:
    """Orders by version line. All methods run on the daemon's loop."""

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        self._orders: dict[int, _Order] = {}
        self._killed: dict[int, int] = {}  # by line: workers that died while they loaded it
        self._resident: set[int] = set()  # lines that every worker held once

    async def load(self, order: wire.LoadKernel, fds: tuple[int, ...], timeout: float, until: float) -> wire.Loaded:
        """Loads a version in every worker, until that time of the loop at most. Raises what the first one says."""
        mine = _Order(order, fds, timeout, (order.line, order.generation))
        self._orders[order.line] = mine
        self._killed.pop(order.line, None)
        for _ in range(_DEADLY):
            workers = await self._present()
            results = await asyncio.gather(
                *(self._load_in(worker, mine, until) for worker in workers), return_exceptions=True
            )
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
                return loaded[0]
        raise PeerDied("worker", f"all workers of pool {self._pool.name} died before they could load {order.name!r}")

    async def _load_in(self, worker: WorkerProcess, order: _Order, until: float) -> wire.Loaded:
        async with asyncio.timeout_at(until):
            return await worker.load(order.load, order.fds)

    def _too_slow(self, order: _Order, workers: list[WorkerProcess]) -> DeadlineExceeded:
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

    async def load_all(self, worker: WorkerProcess) -> None:
        """In a new worker: everything that is to be resident, what is asked for meanwhile included. Raises PeerDied."""
        held: set[tuple[int, int]] = set()
        while missing := [order for order in self._orders.values() if order.key not in held]:
            for order in missing:
                held.add(order.key)
                if self._orders.get(order.key[0]) is not order:
                    continue  # dropped while the one before it was being loaded
                await self._load_again(worker, order)

    async def _load_again(self, worker: WorkerProcess, order: _Order) -> None:
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
        self._killed[line] = self._killed.get(line, 0) + 1
        if line not in self._resident:
            del self._orders[line]  # load() says so to who asked for it
        elif self._killed[line] >= _DEADLY:
            del self._orders[line]
            log.error("pool %s: %s killed %d workers that loaded it; new workers do without it: unload it, or load "
                      "another version", self._pool.name, order.load.name, _DEADLY)  # fmt: skip

    def forget(self, line: int, generation: int) -> None:
        """New workers do without it."""
        self._orders.pop(line, None)
        self._killed.pop(line, None)
        self._resident.discard(line)
        for worker in self._pool.workers:
            worker.drop_kernel(line, generation)
