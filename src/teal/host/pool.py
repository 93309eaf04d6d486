"""A pool: a named set of workers, the models on them and the sessions they serve, as the host keeps it.

Theory of operation: the pool remembers what every worker has been told (sessions, regions, loaded versions), so that a
replacement can be told the same before it is opened. A session or region that goes away is first taken from the
workers (each
answers when it has let go), then freed. Everything here runs on the daemon's event loop; only the core's sweeper is a
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from teal import _core
from teal.errors import NotFound, PeerDied, QuotaExceeded, TealError
from teal.host import wire
from teal.host.limits import Limits
from teal.host.process import WorkerProcess, how_it_ended

log = logging.getLogger("teal.host")

_RESTART_DELAYS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)


@dataclass(slots=True)
class Spill:
    fd: int
    nbytes: int
    layout: list[tuple[int, str, list[int], int, int]]


@dataclass(slots=True, eq=False)
class Session:
    """A client's session: its memory, by region id."""

    index: int
    epoch: int
    fd: int  # the sweeper's
    slots: int
    regions: dict[int, tuple[int, int]] = field(default_factory=dict)  # id → (descriptor, bytes)
    granted: int = 0
    spills: dict[int, Spill] = field(default_factory=dict)
    next_spill: int = 1
    closed: bool = False

    @property
    def nbytes(self) -> int:
        return sum(size for _, size in self.regions.values()) + sum(spill.nbytes for spill in self.spills.values())


@dataclass(slots=True, eq=False)
class Version:
    """A loaded version: where it is in the pool, and what a new worker needs to load it."""

    name: str
    number: int
    line: int
    generation: int
    order: wire.LoadKernel
    file_fd: int | None
    digest: str
    nbytes: int
    inputs: list[wire.Spec]
    outputs: list[wire.Spec]
    pure: bool
    idempotent: bool
    pinned: bool
    seconds: float


class Pool:
    """See the module. ``start`` before use, ``stop`` at the end."""

    def __init__(self, name: str, workers: int, idle_ns: int, cores: Sequence[int], limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self.idle_ns = idle_ns
        self.sessions: dict[int, Session] = {}
        self.versions: dict[int, Version] = {}  # by line
        self.restarts = 0
        self.failed = 0  # requests that died with a worker
        self.again = 0  # requests that ran again
        self.stopping = False
        self._cores = list(cores)
        self._count = workers
        self.sweeper = _core.Sweeper(idle_ns)
        self.workers: list[WorkerProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._deaths = 0
        self._loading: set[tuple[int, int]] = set()

    async def start(self) -> None:
        """Starts the workers and waits until they can take requests. Raises PeerDied when one cannot start."""
        self.sweeper.start()
        self.workers = [self._spawn(i) for i in range(self._count)]
        await asyncio.gather(*(worker.until_ready() for worker in self.workers))
        for worker in self.workers:
            worker.open = True
            worker.send(wire.Open())

    def _spawn(self, index: int) -> WorkerProcess:
        worker = WorkerProcess(index, self._reported)
        worker.start(self.sweeper.pool_fd, self._cores, self._died)
        return worker

    def spawn_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pool %s: %s: %s", self.name, type(error).__name__, error)

    # ---- workers that die ----------------------------------------------------------------------------------------

    def _died(self, worker: WorkerProcess, status: int) -> None:
        words, detail = how_it_ended(status)
        failed, again = self.sweeper.bury_worker(worker.index, detail)
        self.failed += failed
        self.again += again
        if self.stopping or worker.stopping:
            return
        self.restarts += 1
        self._deaths = self._deaths + 1 if not worker.open else 0
        log.warning("worker %d (process %d) of pool %s ended: %s; %d requests failed, %d run again; replacing it",
                    worker.index, worker.pid, self.name, words, failed, again)  # fmt: skip
        self.spawn_task(self._replace(worker.index))

    async def _replace(self, index: int) -> None:
        await asyncio.sleep(_RESTART_DELAYS[min(self._deaths, len(_RESTART_DELAYS) - 1)])
        if self.stopping:
            return
        worker = self._spawn(index)
        self.workers[index] = worker
        with contextlib.suppress(PeerDied):  # its own death starts the next attempt
            await worker.until_ready()
            for session in self.sessions.values():
                self._tell_session(worker, session)
            for version in list(self.versions.values()):
                report = await self._load_on(worker, version.order, version.file_fd)
                if report.error is not None:
                    log.error("pool %s: %s version %d does not load in a new worker: %s",
                              self.name, version.name, version.number, report.error.message)  # fmt: skip
            worker.open = True
            worker.send(wire.Open())

    def _tell_session(self, worker: WorkerProcess, session: Session) -> None:
        if session.closed:
            return
        worker.send(wire.AddSession(session.index, session.epoch, session.slots, session.granted), (session.fd,))
        for region, (fd, _) in session.regions.items():
            worker.send(wire.AddRegion(session.index, session.epoch, region), (fd,))

    def _reported(self, worker: WorkerProcess, report: wire.WorkerReport, datagram: wire.Datagram) -> None:
        if isinstance(report, wire.Spilled):
            self._keep_spill(report, datagram)

    # ---- sessions and their memory -------------------------------------------------------------------------------

    def open_session(self) -> Session:
        """Raises QuotaExceeded."""
        index, epoch, fd = self.sweeper.open_session(self.limits.slots, self.limits.in_flight)
        session = Session(index, epoch, fd, self.limits.slots)
        self.sessions[index] = session
        for worker in self.workers:
            self._tell_session(worker, session)
        return session

    def make_region(self, session: Session, nbytes: int, pages: str) -> tuple[int, int, int]:
        """(id, descriptor, bytes) of a new region. Raises QuotaExceeded with the numbers."""
        if session.nbytes + nbytes > self.limits.bytes:
            raise QuotaExceeded(
                f"{nbytes} more bytes of shared memory: this client has {session.nbytes} of its {self.limits.bytes}; "
                "release tensors, or raise Limits.bytes"
            )
        region = session.granted  # never used again: a worker that has not heard of it yet can tell that it will
        fd, size, _ = _core.make_region(nbytes, session.index << 32 | region, pages)
        session.regions[region] = (fd, size)
        for worker in self.workers:
            worker.send(wire.AddRegion(session.index, session.epoch, region), (fd,))
        session.granted += 1
        self.sweeper.grant_region(session.index, session.granted)
        return region, fd, size

    async def free_region(self, session: Session, region: int) -> None:
        """After every worker has let go of it. Raises NotFound."""
        if region not in session.regions:
            raise NotFound(f"region {region} of this session")
        await self._dropped_everywhere(
            wire.DropRegion(session.index, session.epoch, region), ("drop region", session.index, region)
        )
        fd, _ = session.regions.pop(region, (-1, 0))
        if fd >= 0:
            os.close(fd)

    async def close_session(self, session: Session, *, gone: bool) -> None:
        """Cancels what waits, lets the running request end unseen, and frees the memory."""
        if session.closed:
            return
        session.closed = True
        self.sweeper.close_session(session.index, gone)
        await self._dropped_everywhere(
            wire.DropSession(session.index, session.epoch), ("drop session", session.index, session.epoch)
        )
        while self.sweeper.session_in_flight(session.index) > 0 and not self.stopping:
            await asyncio.sleep(0.002)
        for fd, _ in session.regions.values():
            os.close(fd)
        for spill in session.spills.values():
            os.close(spill.fd)
        session.regions.clear()
        session.spills.clear()
        self.sessions.pop(session.index, None)
        self.sweeper.free_session(session.index)

    async def _dropped_everywhere(self, order: wire.WorkerOrder, key: tuple[str, int, int]) -> None:
        async def dropped(worker: WorkerProcess) -> None:
            with contextlib.suppress(PeerDied):
                await worker.ask(order, key)

        # A worker that is not open yet answers once it runs.
        await asyncio.gather(*(dropped(worker) for worker in self.workers if not worker.gone))

    def _keep_spill(self, report: wire.Spilled, datagram: wire.Datagram) -> None:
        session = self.sessions.get(self.sweeper.record_session(report.record))
        fits = session is not None and not session.closed and session.nbytes + report.nbytes <= self.limits.bytes
        if session is None or not fits or not datagram.fds:
            self.sweeper.end_handed_over(report.record, report.generation, 0)
            return
        number = session.next_spill
        session.next_spill += 1
        session.spills[number] = Spill(datagram.take_fd(), report.nbytes, report.layout)
        self.sweeper.end_handed_over(report.record, report.generation, number)

    # ---- versions ------------------------------------------------------------------------------------------------

    async def _load_on(self, worker: WorkerProcess, order: wire.LoadKernel, file_fd: int | None) -> wire.Loaded:
        fds = () if file_fd is None else (file_fd,)
        report: wire.Loaded = await worker.ask(order, ("kernel", order.line, order.generation), fds)
        return report

    async def load_everywhere(self, order: wire.LoadKernel, file_fd: int | None) -> wire.Loaded:
        """Loads a version in every worker. Raises what the first one that fails reports."""
        workers = [worker for worker in self.workers if not worker.gone]
        if not workers:
            raise PeerDied("worker", f"pool {self.name} has none now; it is being restarted")
        results = await asyncio.gather(
            *(self._load_on(worker, order, file_fd) for worker in workers), return_exceptions=True
        )
        for result in results:
            if isinstance(result, TealError):
                raise type(result)(f"while loading {order.name}: {result}") from None
            if isinstance(result, BaseException):
                raise result
            if result.error is not None:
                wire.raise_failure(result.error)
        first = results[0]
        assert isinstance(first, wire.Loaded)
        return first

    async def drop_version(self, version: Version, *, force: bool) -> None:
        """Not current any more: requests in flight finish (force: waiting ones are cancelled), memory is given back."""
        self.sweeper.retire_version(version.line)
        if force:
            self.sweeper.cancel_version(version.line)
        while self.sweeper.version_in_flight(version.line) > 0 and not self.stopping:
            await asyncio.sleep(0.001)
        self.versions.pop(version.line, None)
        await self._dropped_everywhere(
            wire.DropKernel(version.line, version.generation), ("drop kernel", version.line, version.generation)
        )
        if version.file_fd is not None:
            os.close(version.file_fd)
        self.sweeper.free_version(version.line)

    # ---- the end -------------------------------------------------------------------------------------------------

    async def stop(self, *, drain: bool, timeout: float) -> None:
        """Drain: requests already submitted finish (at most ``timeout`` s); new ones are refused from now on."""
        self.sweeper.stop_taking(True)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while drain and (self.sweeper.active() > 0 or self.sweeper.queued() > 0) and loop.time() < until:
            await asyncio.sleep(0.002)
        self.stopping = True
        for task in list(self._tasks):
            task.cancel()
        for worker in self.workers:
            worker.stopping = True
            worker.send(wire.Quit())
        until = min(until, loop.time() + 2.0) if drain else loop.time() + 0.2
        while any(not worker.gone for worker in self.workers) and loop.time() < until:
            await asyncio.sleep(0.005)
        for worker in self.workers:
            worker.kill()
        while any(not worker.gone for worker in self.workers):
            await asyncio.sleep(0.002)
        for session in list(self.sessions.values()):
            with contextlib.suppress(TealError):
                self.sweeper.close_session(session.index, False)
            for fd, _ in session.regions.values():
                os.close(fd)
            for spill in session.spills.values():
                os.close(spill.fd)
            session.regions.clear()
            session.spills.clear()
        for version in self.versions.values():
            if version.file_fd is not None:
                os.close(version.file_fd)
        self.versions.clear()
        self.sweeper.stop()
