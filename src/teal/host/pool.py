"""A pool: a named set of workers, the models on them and the sessions they serve, as the host keeps it.

Theory of operation: the pool remembers what every worker has been told (sessions, regions; versions: residence.py), so
that a replacement can be told the same before it is opened. A session or region that goes away is first taken from the
workers (each answers when it has let go), then freed. Everything here runs on the daemon's event loop; only the core's
sweeper is a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from teal import _core
from teal.errors import InternalError, NotFound, PeerDied, QuotaExceeded, TealError
from teal.host import callers, wire
from teal.host.cache import Cache
from teal.host.fate import how_it_ended
from teal.host.lending import Lending, Lent
from teal.host.limits import spare_descriptors
from teal.host.parking import Parking
from teal.host.process import WorkerProcess
from teal.host.recording import Recording
from teal.host.residence import Residence
from teal.host.seat import Seat
from teal.host.seats import Seats
from teal.host.session import Session, Spill
from teal.host.settings import PoolSettings
from teal.host.spares import Spares

log = logging.getLogger("teal.host")

_RESTART_DELAYS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
_MOST_REGIONS = 1024  # of one session at a time: each costs a descriptor here and a mapping in every worker
_FIRST_REGIONS = 4
_MOST_LOSSES, _LOSSES_WITHIN = 2, 60.0  # device kernels that a version may lose in so many seconds
_MOST_BATCHES = 64
_MOST_GRANTS = 1 << 20  # of one session ever: ids are not used again


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
    uid: int  # who loaded it
    idle_ns: int | None = None
    note: str = ""  # what of the load could not be had
    engine: str = ""
    precision: str | None = None
    weights: str = ""
    sealed: tuple[int, ...] = ()  # descriptors of weights that came in sealed memory of their own
    batches: dict[int, str] = field(default_factory=dict)  # of a device model: path by batch, up to powers of two
    memory: int = 0  # bytes of a worker's own memory that it takes while resident
    parked: bool = False
    used: float = 0.0  # time of the loop when it was seen to have served requests
    seen_requests: int = 0
    takes_batches: bool = False  # its requests run together
    preemption: str = "none"  # how a request can be taken from its worker: none, yields or anywhere
    concurrency: int | None = None
    losses: list[float] = field(default_factory=list)  # times of the loop when its device kernel was lost

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Of its file and of its sealed weights."""
        return () if self.file_fd is None else (self.file_fd, *self.sealed)

    def close_descriptors(self) -> None:
        """Frees the host's hold on them; who still maps them keeps them."""
        for fd in self.descriptors:
            os.close(fd)


class Pool:
    """See the module. ``start`` before use, ``stop`` at the end."""

    def __init__(self, name: str, settings: PoolSettings, cache: Cache) -> None:
        self.name = name
        self.cache = cache
        self.settings = settings
        self.limits = settings.limits
        self.sessions: dict[int, Session] = {}
        self.versions: dict[int, Version] = {}  # by line
        self.restarts = 0
        self.failed = 0  # requests that died with a worker
        self.again = 0  # requests that ran again
        self.stopping = False
        self.hurry = False  # do not drain any longer
        self.sweeper = _core.Sweeper(settings.idle_ns)
        self.sweeper.set_batching(settings.batch, settings.delay_ns)
        self.sweeper.set_quantum(settings.quantum_ns)
        self._sessions_gone = 0
        self._requests_gone = 0
        self._gone: dict[int, callers.Numbers] = {}  # what clients that have gone saw of their calls
        self.workers: list[WorkerProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._deaths = 0
        self.names = 0  # model indices given out
        self.residence = Residence(self)
        self.parking = Parking(self)
        self.lending = Lending(self)
        self.lent: list[Lent] = []  # workers that other pools lend to this one
        self.helpers: list[Lending] = []  # of those
        self.spares = Spares(self)
        self.seats = Seats(self)
        self.recording = Recording(self)

    @property
    def everyone(self) -> list[WorkerProcess]:
        """Its workers, and those that are lent to it."""
        return [*self.workers, *(lent.process for lent in self.lent)]

    @property
    def seat(self) -> Seat:
        """That of whoever decides about everything."""
        return self.seats[0]

    async def start(self) -> None:
        """Starts the workers and waits until they can take requests. Raises PeerDied when one cannot start."""
        self.sweeper.start()
        self.workers = [self._spawn(i) for i in range(self.settings.workers)]
        await asyncio.gather(*(worker.until_ready() for worker in self.workers))
        for worker in self.workers:
            worker.open = True
            worker.send(wire.Open())
        self.parking.start()
        self.spares.fill()

    def _spawn(self, index: int) -> WorkerProcess:
        worker = WorkerProcess(index, self.reported)
        worker.start(self.sweeper.pool_fd, self.settings.cores, self.died)
        return worker

    def spawn_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pool %s: %s: %s", self.name, type(error).__name__, error)

    def forget(self) -> None:
        """In a forked child: closes its copies of what would keep clients' memory or a worker waiting."""
        for worker in self.everyone:
            worker.forget()
        self.spares.forget()
        self.seats.forget()
        for session in self.sessions.values():
            session.leases.forget()
            with contextlib.suppress(OSError):
                session.close_descriptors()

    # ---- workers that die ----------------------------------------------------------------------------------------

    def died(self, worker: WorkerProcess, status: int, loading: tuple[int, int] | None) -> None:
        self.bury(worker, status)
        if self.stopping:  # we ended it, and what it ran was cancelled
            return
        self._deaths = self._deaths + 1 if not worker.open else 0
        if loading is not None:
            self.residence.blame(*loading)
        self.spawn_task(self._replace(worker.index))

    def bury(self, worker: WorkerProcess, status: int, whose: str = "") -> bool:
        """Ends what it ran, or has others run it again. ``whose``: said of one that is lent. False: it ran nothing."""
        words, detail = how_it_ended(status)
        failed = again = 0
        try:
            failed, again = self.sweeper.bury_worker(worker.index, detail, self.stopping)
        except TealError as error:
            log.error("pool %s: burying worker %d: %s", self.name, worker.index, error)
        ran = failed + again > 0
        if self.stopping:
            return ran
        self.failed += failed
        self.again += again
        self.restarts += 1
        which = f"{self.name}, {whose}," if whose else self.name
        log.warning("worker %d (process %d) of pool %s ended: %s; %d requests failed, %d run again; replacing it",
                    worker.index, worker.pid, which, words, failed, again)  # fmt: skip
        return ran

    async def _replace(self, index: int) -> None:
        await asyncio.sleep(_RESTART_DELAYS[min(self._deaths, len(_RESTART_DELAYS) - 1)])
        if self.stopping:
            return
        try:
            worker = self.spares.take(index) or self._spawn(index)
        except OSError as error:
            log.error("pool %s: starting worker %d: %s; trying again", self.name, index, error)
            self._deaths += 1
            self.spawn_task(self._replace(index))
            return
        self.workers[index] = worker
        with contextlib.suppress(PeerDied):  # its own death starts the next attempt
            await worker.until_ready()
            for session in self.sessions.values():
                self.tell_session(worker, session)
            await self.residence.load_all(worker)
            self.seats.tell(worker)
            worker.open = True
            worker.send(wire.Open())
            self.spares.fill()

    def tell_session(self, worker: WorkerProcess, session: Session) -> None:
        """And of its regions."""
        if session.closed:
            return
        order = wire.AddSession(session.index, session.epoch, session.slots, session.granted, session.bpf_bytes)
        worker.send(order, (session.fd,))
        for region, (fd, _) in session.regions.items():
            worker.send(wire.AddRegion(session.index, session.epoch, region), (fd,))

    def reported(self, worker: WorkerProcess, report: wire.WorkerReport, datagram: wire.Datagram) -> None:
        if isinstance(report, wire.Spilled):
            self._keep_spill(report, datagram)
        elif isinstance(report, wire.Wanted):
            self.parking.wanted(report)
        elif isinstance(report, wire.Used):
            self.residence.used(worker, report)
        elif isinstance(report, wire.FetchSpill):
            self._give_spill(worker, report)
        elif isinstance(report, wire.Optimised):
            self.residence.keep(report, [datagram.take_fd() for _ in report.parts[: wire.MAX_FDS]])
        elif isinstance(report, wire.Bound | wire.Lost):
            version = self.versions.get(report.line)
            if version is None or version.generation != report.generation:
                return
            if isinstance(report, wire.Lost):
                self._lost_device(version, report.why)
            elif report.batch in version.batches or len(version.batches) < _MOST_BATCHES:
                version.batches[report.batch] = report.path + (f" ({report.why})" if report.why else "")

    def _lost_device(self, version: Version, why: str) -> None:
        now = asyncio.get_running_loop().time()
        version.losses.append(now)
        log.warning(
            "pool %s: %s on %s: resident kernel is lost: %s", self.name, version.name, version.order.device, why
        )
        recent = [at for at in version.losses if now - at < _LOSSES_WITHIN]
        if len(recent) >= _MOST_LOSSES and version.order.path != "cpu":
            version.order.path = "cpu"  # the very order that the worker's replacement is given
            version.note = f"on the CPU: its device kernel was lost {len(recent)} times within {_LOSSES_WITHIN:g} s"
            log.error("pool %s: %s runs %s; load it again to try the device", self.name, version.name, version.note)

    # ---- sessions and their memory -------------------------------------------------------------------------------

    def open_session(self, account: list[Session]) -> Session:
        """account: the client's sessions here, which this one joins. Raises QuotaExceeded."""
        index, epoch, fd = self.sweeper.open_session(self.limits.slots, self.limits.in_flight)
        session = Session(index, epoch, fd, self.limits.slots, account=account)
        account.append(session)
        self.sessions[index] = session
        for worker in self.everyone:
            self.tell_session(worker, session)
        return session

    def open_bpf_session(self, fd: int, slots: int, account: list[Session]) -> Session:
        """In a BPF map of a client with these sessions; takes the descriptor.

        Raises InvalidArgument when it is no such map, QuotaExceeded.
        """
        try:
            nbytes = _core.bpf_memory_bytes(fd)
            held = sum(session.nbytes for session in account)
            if held + nbytes > self.limits.bytes:
                raise QuotaExceeded(
                    f"a BPF map of {nbytes} bytes: this client has {held} of its {self.limits.bytes}; use fewer slots "
                    "or smaller tensors, or raise Limits.bytes"
                )
            if not 0 < slots <= self.limits.slots:
                raise QuotaExceeded(
                    f"a BPF session of {slots} slots: a client may have at most {self.limits.slots} (Limits.slots)"
                )
            spare_descriptors(fd, "one more BPF session", 0.75)
        except TealError:
            os.close(fd)
            raise
        index, epoch, fd, nbytes = self.sweeper.adopt_bpf_session(fd, slots, self.limits.in_flight)
        session = Session(index, epoch, fd, slots, granted=1, bpf_bytes=nbytes, account=account)
        account.append(session)
        self.sessions[index] = session
        for worker in self.everyone:
            self.tell_session(worker, session)
        return session

    def make_region(self, session: Session, nbytes: int, pages: str) -> tuple[int, int, int]:
        """(id, descriptor, bytes) of a new region. Raises QuotaExceeded with the numbers."""
        if not self._fits(session, nbytes):
            raise QuotaExceeded(
                f"{nbytes} more bytes of shared memory: this client has {session.held} of its {self.limits.bytes}; "
                "release tensors, or raise Limits.bytes"
            )
        region = session.granted  # never used again: a worker that has not heard of it yet can tell that it will
        if len(session.regions) + len(session.leaving) >= _MOST_REGIONS or region >= _MOST_GRANTS:
            raise QuotaExceeded(
                f"one more region: this client has {len(session.regions)} of at most {_MOST_REGIONS}, and had {region} "
                f"of at most {_MOST_GRANTS}; make fewer and larger ones, or reconnect"
            )
        fd, size, _ = _core.make_region(nbytes, session.index << 32 | region, pages)
        try:
            # The last quarter is for clients that have hardly any memory yet.
            spare_descriptors(fd, "one more region", 0.75 if len(session.regions) >= _FIRST_REGIONS else 0.9)
        except QuotaExceeded:
            os.close(fd)
            raise
        session.regions[region] = (fd, size)
        for worker in self.everyone:
            worker.send(wire.AddRegion(session.index, session.epoch, region), (fd,))
        session.granted += 1
        self.sweeper.grant_region(session.index, session.granted)
        return region, fd, size

    def _fits(self, session: Session, nbytes: int) -> bool:
        if session.held + nbytes > self.limits.bytes:
            session.leases.look()
            self._drop_spills(session)
        return session.held + nbytes <= self.limits.bytes

    def _drop_spills(self, session: Session) -> None:
        """Those that nobody can ask for any more: their slot has been used again."""
        for number, spill in list(session.spills.items()):
            if self.sweeper.is_used_again(session.index, spill.slot, spill.generation):
                os.close(session.spills.pop(number).fd)

    async def free_region(self, session: Session, region: int) -> None:
        """After every worker has let go of it. Raises NotFound."""
        if region not in session.regions:
            raise NotFound(f"region {region} of this session")
        session.leaving[region] = session.regions.pop(region)
        await self._dropped_everywhere(
            wire.DropRegion(session.index, session.epoch, region), ("drop region", session.index, region)
        )
        fd, _ = session.leaving.pop(region, (-1, 0))
        if fd >= 0:
            os.close(fd)

    async def close_session(self, session: Session, *, gone: bool) -> None:
        """Cancels what waits, lets the running request end unseen, and frees the memory."""
        if session.closed:
            return
        session.closed = True
        await self._no_more_from(session, gone)
        await self._dropped_everywhere(
            wire.DropSession(session.index, session.epoch), ("drop session", session.index, session.epoch)
        )
        while self.sweeper.session_in_flight(session.index) > 0 and not self.stopping:
            await asyncio.sleep(0.002)
        session.leases.end()
        session.close_descriptors()
        self.sessions.pop(session.index, None)
        session.account.remove(session)
        requests = self.sweeper.session(session.index)["requests"]
        self._sessions_gone += requests > 0
        self._requests_gone += requests
        self._gone = callers.by_model([self._gone, self._seen_by(session.index)])
        self.sweeper.free_session(session.index)

    async def _no_more_from(self, session: Session, gone: bool) -> None:
        while not self.stopping:
            try:
                self.sweeper.close_session(session.index, gone)
            except InternalError as error:  # somebody sits on the dispatch role
                log.error("pool %s: closing session %d: %s; trying again", self.name, session.index, error)
                await asyncio.sleep(0.1)
            else:
                return

    def callers(self) -> dict[int, callers.Numbers]:
        """What clients saw of their calls so far, by index of the model."""
        return callers.by_model([self._gone, *(self._seen_by(index) for index in list(self.sessions))])

    def _seen_by(self, session: int) -> dict[int, dict[str, Any]]:
        """What its client wrote, of models that there are: it could fill our memory with others."""
        seen = self.sweeper.client_stages(session)
        return {model: numbers for model, numbers in seen.items() if -1 <= model < self.names}

    async def _dropped_everywhere(self, order: wire.WorkerOrder, key: tuple[str, int, int]) -> None:
        async def dropped(worker: WorkerProcess) -> None:
            with contextlib.suppress(PeerDied):
                await worker.ask(order, key)

        # A worker that is not open yet answers once it runs.
        await asyncio.gather(*(dropped(worker) for worker in self.everyone if not worker.gone))

    def _keep_spill(self, report: wire.Spilled, datagram: wire.Datagram) -> None:
        session = self.sessions.get(self.sweeper.record_session(report.record))
        fits = session is not None and not session.closed and self._fits(session, report.nbytes)
        fits = fits and not (session is not None and session.bpf_bytes)  # nobody there could ask for it
        if session is None or not fits or not datagram.fds:
            self.sweeper.end_handed_over(report.record, report.generation, 0)
            return
        try:
            spare_descriptors(datagram.fds[0], "one more spilled output", 0.75)
        except QuotaExceeded as error:
            log.warning("pool %s: client session %d: %s", self.name, session.index, error)
            self.sweeper.end_handed_over(report.record, report.generation, 0)
            return
        number = session.next_spill
        session.next_spill += 1
        slot, generation = self.sweeper.record_request(report.record)
        session.spills[number] = Spill(datagram.take_fd(), report.nbytes, report.layout, slot, generation)
        self.sweeper.end_handed_over(report.record, report.generation, number)

    def _give_spill(self, worker: WorkerProcess, report: wire.FetchSpill) -> None:
        """To a worker whose request reads it."""
        session = self.sessions.get(report.session)
        spill = None
        if session is not None and session.epoch == report.epoch and not session.closed:
            spill = session.spills.get(report.spill) or session.lent.get(report.spill)
        answer = wire.GiveSpill(report.session, report.epoch, report.spill)
        if spill is None:
            worker.send(answer)
            return
        answer.found, answer.layout = True, spill.layout
        worker.send(answer, (spill.fd,))

    def _lend(self, session: Session, number: int, spill: Spill) -> None:
        """It was taken by its client, and requests that are out still read it."""
        session.lent[number] = spill

        async def until_read() -> None:
            while not session.closed and self.sweeper.is_awaited(session.index, spill.slot, spill.generation):
                await asyncio.sleep(0.01)
            if session.lent.pop(number, None) is not None:
                os.close(spill.fd)

        self.spawn_task(until_read())

    def take_spill(self, session: Session, number: int) -> tuple[Spill, tuple[int, ...]]:
        """A spill and the descriptors that go with it, which are closed once the answer is sent. Raises NotFound."""
        spill = session.spills.pop(number, None)
        if spill is None:
            raise NotFound(f"spilled output {number}: none, or taken already")
        fds = [spill.fd]
        if (lease := session.leases.give(spill.nbytes)) is not None:
            fds.append(lease)
        if self.sweeper.is_awaited(session.index, spill.slot, spill.generation):
            fds[0] = os.dup(spill.fd)
            self._lend(session, number, spill)
        for fd in fds:
            asyncio.get_running_loop().call_soon(os.close, fd)
        return dataclasses.replace(spill, fd=fds[0]), tuple(fds)

    # ---- versions ------------------------------------------------------------------------------------------------

    async def undo_load(self, order: wire.LoadKernel) -> None:
        """After a load that failed: no worker holds it any more."""
        await self.drop_kernel(order.line, order.generation)
        self.sweeper.free_version(order.line)

    async def drop_kernel(self, line: int, generation: int, *, parked: bool = False) -> None:
        """No worker holds it any more."""
        self.residence.forget(line, generation, parked=parked)
        await self._dropped_everywhere(wire.DropKernel(line, generation), ("drop kernel", line, generation))

    def set_idle(self) -> None:
        """Workers spin as long as the most demanding of their models asks for, or the host."""
        self.sweeper.set_idle(
            max([self.settings.idle_ns, *(v.idle_ns for v in self.versions.values() if v.idle_ns is not None)])
        )

    async def unbind(self, version: Version) -> None:
        """Returns when no client goes on with a version of a device model that is not current any more."""
        if version.order.device is not None and self.versions.get(version.line) is version:
            key = (version.line, version.generation)
            await self._dropped_everywhere(wire.Unbind(*key), ("drop bindings", *key))

    async def drop_version(self, version: Version, *, force: bool) -> None:
        """Not current any more: requests in flight finish (force: waiting ones are cancelled), memory is given back."""
        await self.parking.out_of_here(version, force=force)
        self.sweeper.retire_version(version.line)
        if force:
            self.sweeper.cancel_version(version.line)
        while self.sweeper.version_in_flight(version.line) > 0 and not self.stopping:
            await asyncio.sleep(0.001)
        self.versions.pop(version.line, None)
        self.set_idle()
        await self.drop_kernel(version.line, version.generation)
        version.close_descriptors()
        self.sweeper.free_version(version.line)
        self.changed()

    def changed(self) -> None:
        """What there is to lend, or the room for what others lend, is not what it was."""
        for lending in (self.lending, *self.helpers):
            lending.look()

    def numbers(self) -> dict[str, Any]:
        """What a look at the pool shows; records.PoolStatistics."""
        return {
            "name": self.name,
            "workers": self.settings.workers,
            "idle_us": self.settings.idle_ns / 1000,
            "batch": self.settings.batch,
            "delay_us": self.settings.delay_ns / 1000,
            "quantum_us": self.settings.quantum_ns / 1000,
            "threads": self.settings.threads,
            "cores": list(self.settings.cores),
            "bytes": self.limits.bytes,
            "in_flight": self.limits.in_flight,
            "slots": self.limits.slots,
            "sessions": len(self.sessions),
            "sessions_gone": self._sessions_gone,
            "requests_gone": self._requests_gone,
            "queued": self.sweeper.queued(),
            "active": self.sweeper.active(),
            "restarts": self.restarts,
            "spares": self.spares.ready,
            "spares_used": self.spares.used,
            "memory": self.settings.memory,
            "memory_used": self.parking.used(),
            "parkings": self.parking.parkings,
            "returns": self.parking.returns,
            "helps": list(self.settings.helps),
            "helped": self.lending.helped(),
            "stolen": sum(self.sweeper.worker(lent.index)["requests"] for lent in self.lent),
        }

    # ---- the end -------------------------------------------------------------------------------------------------

    def _left(self) -> int:
        """Requests that were submitted before stop_taking() and have not ended."""
        unread = 0 if self.sweeper.all_taken() else 1  # first: what is taken meanwhile is counted below
        return max(self.sweeper.active(), self.sweeper.queued(), unread)

    async def stop(self, *, drain: bool, timeout: float) -> None:
        """Drain: requests already submitted finish (at most ``timeout`` s); new ones are refused from now on."""
        self.sweeper.stop_taking(True)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while drain and not self.hurry and (left := self._left()) > 0:
            if loop.time() >= until:
                log.warning("pool %s: %d requests did not finish within %g s", self.name, left, timeout)
                break
            await asyncio.sleep(0.002)
        self.stopping = True
        self.parking.stop()
        for task in list(self._tasks):
            task.cancel()
        for worker in self.everyone:
            worker.stopping = True
            worker.send(wire.Quit())
        until = min(until, loop.time() + 2.0) if drain and not self.hurry else loop.time() + 0.2
        while any(not worker.gone for worker in self.everyone) and loop.time() < until:
            await asyncio.sleep(0.005)
        for worker in self.everyone:
            worker.kill()
        await self.spares.stop()
        while any(not worker.gone for worker in self.everyone):
            await asyncio.sleep(0.002)
        for session in list(self.sessions.values()):
            with contextlib.suppress(TealError):
                self.sweeper.close_session(session.index, False)
            session.leases.end()
            session.close_descriptors()
        for version in self.versions.values():
            version.close_descriptors()
        self.versions.clear()
        self.residence.close()
        self.seats.close()
        self.sweeper.stop()
