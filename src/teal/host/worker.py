"""A worker process: ``python -m teal.host.worker CONTROL_FD POOL_FD INDEX [CORES [LENDER_FD LOANS_FD ITS_WORKER]]``.
With -1 for an index it is a spare (spares.py), with the last three one that another pool lends (lending.py).

Theory of operation: the main thread runs the core's loop (core/host/worker.hpp) and nothing else. A control thread
reads orders from the host (sessions, regions, quit) and posts them to the loop. Kernels are loaded and dropped, one
after the other, on a third thread, so that neither a model that takes minutes nor one that never comes back keeps the
loop or other clients' memory waiting. When the host goes, the process leaves at once, whatever it is doing: the control
socket closes, and should the interpreter be busy with something that lets no other thread run, the kernel's own signal
(PR_SET_PDEATHSIG) ends it.

A kernel may fork. Its child has none of these threads and no way to the host; one that comes back from the kernel ends
(core/bindings/worker.cpp), so that there is one worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

from teal import _core
from teal.errors import InternalError, InvalidArgument, TealError
from teal.host import wire
from teal.host.engines import ENGINES
from teal.host.fate import DEVICE_LOST
from teal.host.lifeline import die_with_host
from teal.kernel.builtin import builtin
from teal.kernel.protocol import Kernel, Snapshot, Source, load_kernel
from teal.kernel.systems import signature_of
from teal.kernel.warming import Inputs, Noted

_ALIGN = 4096
_SPILL_PATIENCE = 5.0  # seconds
_LENT_NICE = 5  # beside the lender's own worker it gets a quarter of a core
_BROKEN = 70  # exit status: the host said what makes no sense (EX_SOFTWARE)


class Control:
    """The control thread's side of a worker."""

    def __init__(self, control: socket.socket, pool_fd: int, lender: tuple[int, int, int] | None = None) -> None:
        self._socket = control
        self._pool_fd = pool_fd
        self._lender = lender or (-1, -1, 0)
        self.worker: _core.Worker | None = None  # None: a spare, without a place in the pool
        self._index = 0
        self._taking_up = threading.Lock()  # guards `worker` against the loader
        self._sending = threading.Lock()
        self._leaves = threading.Lock()  # taken by whoever ends this process, and kept
        self._kernels: dict[tuple[int, int], Kernel] = {}
        self._kernel_orders: queue.SimpleQueue[
            tuple[wire.LoadKernel | wire.DropKernel | wire.WarmUp | wire.Dropped, tuple[int, ...]]
        ] = queue.SimpleQueue()
        self._given: queue.SimpleQueue[tuple[wire.GiveSpill, int | None]] = queue.SimpleQueue()
        self.opened = threading.Event()

    @property
    def _worker(self) -> _core.Worker:
        if self.worker is None:
            raise InternalError("a spare worker was told what is for one that has a place in the pool")
        return self.worker

    def take_up(self, index: int) -> None:
        """Takes that place in the pool, with the kernels that there are."""
        self._index = index
        worker = _core.Worker(self._pool_fd, index, *self._lender)
        worker.on_dropped(self._dropped)
        worker.on_fetch(self._fetch)
        with self._taking_up:
            for key, kernel in self._kernels.items():
                worker.set_kernel(*key, kernel, self._spill)
            self.worker = worker

    def start(self) -> None:
        threading.Thread(target=self._loop, name="control", daemon=True).start()
        threading.Thread(target=self._load_loop, name="loader", daemon=True).start()

    def report(self, message: wire.WorkerReport, fds: tuple[int, ...] = ()) -> None:
        with self._sending:
            wire.send(self._socket, message, fds)

    def _loop(self) -> None:
        status = _BROKEN
        try:
            while (datagram := wire.receive(self._socket)) is not None:
                try:
                    self._obey(wire.decode_order(datagram.data), datagram)
                finally:
                    datagram.close()
            status = 0  # the host is gone: there is nobody to finish anything for
        except OSError:
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _obey(self, order: wire.WorkerOrder, datagram: wire.Datagram) -> None:
        match order:
            case wire.Adopt(index):
                self.take_up(index)
                return
            case wire.DropKernel() | wire.WarmUp():
                self._kernel_orders.put((order, ()))
                return
            case wire.LoadKernel():
                count = order.has_file + order.sealed + len(order.snapshot_parts)
                self._kernel_orders.put((order, tuple(datagram.take_fd() for _ in range(count))))
                return
            case wire.Quit() if self.worker is None:
                self.opened.set()
                return
        worker = self._worker
        match order:
            case wire.AddSession(session, epoch, slots, granted, bpf_bytes):
                try:
                    if bpf_bytes:
                        worker.add_bpf_session(datagram.take_fd(), session, epoch, slots, bpf_bytes)
                    else:
                        worker.add_session(datagram.take_fd(), session, epoch, slots, granted)
                except TealError as error:  # no address space, no mappings left: its requests fail, the others go on
                    print(f"teal worker: session {session}: {error}", file=sys.stderr, flush=True)
            case wire.AddRegion(session, epoch, region):
                try:
                    worker.add_region(session, epoch, region, datagram.take_fd())
                except TealError as error:
                    print(f"teal worker: region {region} of session {session}: {error}", file=sys.stderr, flush=True)
                    worker.drop_region(session, epoch, region)
            case wire.DropRegion(session, epoch, region):
                worker.drop_region(session, epoch, region)
            case wire.DropSession(session, epoch):
                worker.drop_session(session, epoch)
            case wire.Unbind(line, generation):
                worker.unbind(line, generation)
            case wire.AddSeat(seat, incarnation, link):
                try:
                    worker.add_seat(datagram.take_fd(), datagram.take_fd(), link)
                except TealError as error:  # the agent is told of what this worker does by its words alone
                    print(f"teal worker: seat {seat}: {error}", file=sys.stderr, flush=True)
                self._tell(wire.SeatAdded(seat, incarnation))
            case wire.DecideInline(policy):
                from teal.agents import parse_policy

                worker.decide_inline(parse_policy(policy))
            case wire.DropSeat(seat, incarnation):
                worker.drop_seat(seat, incarnation)
            case wire.AddTrace():
                worker.add_trace(datagram.take_fd())
            case wire.DropTrace():
                worker.drop_trace()
            case wire.GiveSpill(found=found):
                self._given.put((order, datagram.take_fd() if found else None))
            case wire.Open():
                self.opened.set()
            case wire.Quit():
                self.opened.set()
                worker.quit()

    def _load_loop(self) -> None:
        while True:
            order, fds = self._kernel_orders.get()
            if isinstance(order, wire.DropKernel):
                self._drop(order)
            elif isinstance(order, wire.Dropped):
                self._dispose(order)
            elif isinstance(order, wire.WarmUp):
                self._warm_up(order)
            else:
                self._load(order, fds)

    def _warm_up(self, order: wire.WarmUp) -> None:
        kernel = self._kernels.get((order.line, order.generation))
        if isinstance(kernel, Noted) and self.worker is None:  # else it has calls to answer by now
            with contextlib.suppress(Exception):  # its caller heard of it, or will
                kernel.warm(order.inputs)
        self._tell(wire.Warmed(order.line, order.generation))

    def _drop(self, order: wire.DropKernel) -> None:
        with self._taking_up:
            if self.worker is not None:
                self.worker.drop_kernel(order.line, order.generation)
                return
        self._dispose(wire.Dropped("kernel", order.line, order.generation))

    def _load(self, order: wire.LoadKernel, fds: tuple[int, ...]) -> None:
        start = time.perf_counter()
        report = wire.Loaded(order.line, order.generation)
        before = _own_bytes()
        try:
            self.report(wire.Loading(order.line, order.generation))
            self._make(order, fds, report)
        except BaseException as error:
            report.error = wire.failure_of(error)
        finally:
            for fd in fds:
                os.close(fd)
        report.seconds = time.perf_counter() - start
        report.memory = max(0, _own_bytes() - before)
        with contextlib.suppress(OSError):
            try:
                self.report(report)
            except TealError as error:  # a signature too long for one message
                self.report(wire.Loaded(order.line, order.generation, error=wire.failure_of(error)))

    def _make(self, order: wire.LoadKernel, fds: tuple[int, ...], report: wire.Loaded) -> None:
        fd = fds[0] if order.has_file else None
        own = order.has_file + order.sealed  # those behind are the snapshot's
        if order.kernel == "builtin":
            name, (report.inputs, report.outputs, report.pure) = builtin(order.source)
            report.preemption = self._worker.set_builtin(order.line, order.generation, name)
            return
        if order.kernel == "systems":
            self._make_systems(order, fd, report)
            return
        source = Source(
            order.name,
            order.source,
            fd,
            order.threads,
            order.options,
            order.precision,
            order.device,
            order.weights_bytes,
            order.trusted,
            order.wants_snapshot,
            Snapshot(order.snapshot_key, dict(zip(order.snapshot_parts, fds[own:], strict=True)))
            if order.snapshot_parts
            else None,
            fds[order.has_file : own],
            self._index,
            tuple(order.ducks),
            order.duck_key,
            order.headers,
        )
        with _in_this_process():
            kernel = load_kernel(order.kernel, source)
        self._hand_over(order, getattr(kernel, "snapshot", None))
        report.inputs, report.outputs, report.pure = kernel.inputs, kernel.outputs, kernel.pure
        # Of engines; other kernels do not have these.
        report.engine, report.weights = getattr(kernel, "engine", ""), getattr(kernel, "weights", "")
        report.note, report.restored = getattr(kernel, "note", ""), getattr(kernel, "restored", False)
        report.preemption = getattr(kernel, "preemption", "none")
        if order.kernel in ENGINES and kernel.pure:
            kernel = Noted(kernel, functools.partial(self._used, order.line, order.generation))
        with self._taking_up:
            self._kernels[order.line, order.generation] = kernel
            if self.worker is not None:
                self.worker.set_kernel(order.line, order.generation, kernel, self._spill)

    def _used(self, line: int, generation: int, inputs: Inputs) -> None:
        self._tell(wire.Used(line, generation, inputs))

    def _hand_over(self, order: wire.LoadKernel, snapshot: Snapshot | None) -> None:
        """The optimised form that an engine made goes to the host, if it made one."""
        if snapshot is None:
            return
        try:
            report = wire.Optimised(order.line, order.generation, snapshot.key, list(snapshot.parts), snapshot.whole)
            self.report(report, tuple(snapshot.parts.values()))
        finally:
            snapshot.close()

    def _make_systems(self, order: wire.LoadKernel, fd: int | None, report: wire.Loaded) -> None:
        if fd is None:
            raise InvalidArgument("a systems load needs its file", path="$.source")
        if order.device is not None and self._make_device(order, order.device, fd, report):
            return
        try:
            load = self._worker.set_systems(order.line, order.generation, fd)
        except InvalidArgument as error:
            raise InvalidArgument(f"{order.source or order.name}: {error}") from None
        report.inputs, report.outputs, report.pure = *signature_of(load), True

    def _make_device(self, order: wire.LoadKernel, device: str, fd: int, report: wire.Loaded) -> bool:
        """False: no device, and a path that does without."""
        if order.path == "cpu":
            return False
        from teal.kernel.device import IDLE, DeviceKernel
        from teal.kernel.residents import open_device

        key = (order.line, order.generation)
        try:
            idle = IDLE if order.idle_ns is None else max(1e-6, order.idle_ns / 1e9)
            kernel = DeviceKernel(fd, open_device(device), order.path, idle)
        except TealError as error:
            if order.path != "auto" or isinstance(error, InvalidArgument):
                raise
            report.note = f"on the CPU: {error}"
            return False
        kernel.on_bound = lambda batch, path, why: self._tell(wire.Bound(*key, batch, path, why))
        kernel.on_lost = lambda why: self._lost(order, why)
        report.inputs, report.outputs, report.pure = kernel.inputs, kernel.outputs, kernel.pure
        report.note = kernel.note
        self._kernels[key] = kernel
        self._worker.set_device(*key, fd, kernel, self._spill)
        return True

    def _lost(self, order: wire.LoadKernel, why: str) -> None:
        """Nothing ends a device kernel from outside: the process that holds the device goes.

        Whoever uses it may find it lost at the same time: it is said once, and the others end here.
        """
        self._leaves.acquire()
        print(
            f"teal worker: {order.name} on {order.device}: resident kernel is lost: {why}", file=sys.stderr, flush=True
        )
        self._tell(wire.Lost(order.line, order.generation, why))
        os._exit(DEVICE_LOST)

    def _tell(self, report: wire.WorkerReport) -> None:
        with contextlib.suppress(OSError):  # the host is gone, and so are we soon
            self.report(report)

    def _dropped(self, what: str, index: int, epoch: int) -> None:
        # Called by the loop, between two requests.
        dropped = wire.Dropped(what, index, epoch)
        if what == "wanted":
            self._tell(wire.Wanted(index, epoch))
            return
        if what == "kernel":
            self._kernel_orders.put((dropped, ()))  # freeing a model takes longer than requests should wait
            return
        if what in ("region", "session") and (residents := sys.modules.get("teal.kernel.residents")) is not None:
            residents.forget(index, epoch if what == "region" else None)
        with contextlib.suppress(OSError):
            self.report(dropped)

    def _dispose(self, dropped: wire.Dropped) -> None:
        kernel = self._kernels.pop((dropped.index, dropped.epoch), None)
        if kernel is not None:
            try:
                with _in_this_process():
                    kernel.close()
            except Exception:  # a user's close(): its mistake must not keep the memory, and must be seen
                traceback.print_exc()
            del kernel
            gc.collect()
            _give_memory_back()
        with contextlib.suppress(OSError):
            self.report(dropped)

    def _fetch(self, session: int, epoch: int, spill: int) -> tuple[int, list[Any]] | None:
        """A spilled output that a request takes. Called by the loop, which waits for it."""
        with contextlib.suppress(OSError):
            self.report(wire.FetchSpill(session, epoch, spill))
            until = time.monotonic() + _SPILL_PATIENCE
            while (left := until - time.monotonic()) > 0:
                try:
                    given, fd = self._given.get(timeout=left)
                except queue.Empty:
                    break
                if (given.session, given.epoch, given.spill) == (session, epoch, spill):
                    return None if fd is None else (fd, given.layout)
                if fd is not None:  # the answer to a question that was given up
                    os.close(fd)
        return None

    def _spill(self, record: int, generation: int, outputs: list[Any]) -> None:
        """Outputs that did not fit their slot: into a region of their own, which the host passes on."""
        import numpy as np  # half of a worker's start, and not every kernel wants it

        pieces: list[tuple[int, str, list[int], bytes | memoryview]] = []
        for index, output in enumerate(outputs):
            if output is None:
                continue
            if isinstance(output, tuple):
                shape, packed = output
                pieces.append((index, "BYTES", list(shape), packed))
            else:
                dtype, shape, _ = _core.describe(output)
                flat = np.ascontiguousarray(output).reshape(-1).view(np.uint8)
                pieces.append((index, dtype, list(shape), flat.data))
        layout: list[tuple[int, str, list[int], int, int]] = []
        offset = _ALIGN
        for index, dtype, extents, raw in pieces:
            layout.append((index, dtype, extents, offset, len(raw)))
            offset += (len(raw) + 255) // 256 * 256
        fd, _, _ = _core.make_region(offset, 0, "small", True)
        try:
            for (_, _, _, at, _), (_, _, _, raw) in zip(layout, pieces, strict=True):
                _write_all(fd, raw, at)
            self.report(wire.Spilled(record, generation, offset, layout), (fd,))
        finally:
            os.close(fd)


@contextlib.contextmanager
def _in_this_process() -> Iterator[None]:
    """For what may fork: only the parent comes out of it."""
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            raised = sys.exc_info()[0] is not None
            if raised:
                traceback.print_exc()
            os._exit(int(raised))


def _write_all(fd: int, raw: bytes | memoryview, at: int) -> None:
    view = memoryview(raw)
    while view:
        wrote = os.pwrite(fd, view[: 1 << 30], at)
        view = view[wrote:]
        at += wrote


def _own_bytes() -> int:
    """Memory of this process that nobody shares; 0 where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def _give_memory_back() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def main(argv: list[str]) -> int:
    die_with_host()
    control_fd, pool_fd, index = (int(value) for value in argv[1:4])
    cores = [int(core) for core in argv[4].split(",")] if len(argv) > 4 and argv[4] else []
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to the whole group; the host decides
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    lender = (int(argv[5]), int(argv[6]), int(argv[7])) if len(argv) > 7 else None
    if cores:
        os.sched_setaffinity(0, cores)
    if lender is not None:
        os.nice(_LENT_NICE)
    sys.setswitchinterval(1e-4)  # the loop gets the GIL back soon while a model is being loaded
    control = socket.socket(fileno=control_fd)
    if control.family != socket.AF_UNIX:
        raise InternalError("worker: the control descriptor is not a UNIX socket")
    gc.collect()
    gc.freeze()  # what is here now stays: later collections need not look at it
    os.register_at_fork(after_in_child=control.close)  # of a kernel: else the host would not hear of this process's end
    side = Control(control, pool_fd, lender)
    if index >= 0:
        side.take_up(index)
    side.report(wire.Ready(os.getpid()))
    side.start()
    side.opened.wait()
    if side.worker is not None:
        side.worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
