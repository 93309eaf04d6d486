"""A worker process: ``python -m teal.host.worker CONTROL_FD POOL_FD INDEX``.

Theory of operation: the main thread runs the core's loop (core/host/worker.hpp) and nothing else. A control thread
reads orders
from the host (sessions, regions, models) and posts them to the loop; models are loaded on that thread, so that the
loop goes on serving
meanwhile. When the control socket closes, the host is gone, and the process leaves at once, whatever it is doing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

import numpy as np

from teal import _core
from teal.errors import InternalError
from teal.host import wire
from teal.kernel.builtin import BUILTINS
from teal.kernel.protocol import Kernel, Source, load_kernel

_ALIGN = 4096


class Control:
    """The control thread's side of a worker."""

    def __init__(self, control: socket.socket, worker: _core.Worker) -> None:
        self._socket = control
        self._worker = worker
        self._sending = threading.Lock()
        self._kernels: dict[tuple[int, int], Kernel] = {}
        self.opened = threading.Event()
        worker.on_dropped(self._dropped)

    def report(self, message: wire.WorkerReport, fds: tuple[int, ...] = ()) -> None:
        with self._sending:
            wire.send(self._socket, message, fds)

    def loop(self) -> None:
        try:
            while (datagram := wire.receive(self._socket)) is not None:
                try:
                    self._obey(wire.decode_order(datagram.data), datagram)
                finally:
                    datagram.close()
        except OSError:
            pass
        os._exit(0)  # the host is gone: there is nobody to finish anything for

    def _obey(self, order: wire.WorkerOrder, datagram: wire.Datagram) -> None:
        worker = self._worker
        match order:
            case wire.AddSession(session, epoch, slots, granted):
                worker.add_session(datagram.take_fd(), session, epoch, slots, granted)
            case wire.AddRegion(session, epoch, region):
                worker.add_region(session, epoch, region, datagram.take_fd())
            case wire.DropRegion(session, epoch, region):
                worker.drop_region(session, epoch, region)
            case wire.DropSession(session, epoch):
                worker.drop_session(session, epoch)
            case wire.DropKernel(line, generation):
                worker.drop_kernel(line, generation)
            case wire.Open():
                self.opened.set()
            case wire.Quit():
                self.opened.set()
                worker.quit()
            case wire.LoadKernel():
                self._load(order, datagram)

    def _load(self, order: wire.LoadKernel, datagram: wire.Datagram) -> None:
        start = time.perf_counter()
        report = wire.Loaded(order.line, order.generation)
        try:
            if order.kernel == "builtin":
                report.inputs, report.outputs, report.pure = BUILTINS[order.source]
                self._worker.set_builtin(order.line, order.generation, order.source)
            else:
                fd = datagram.take_fd() if order.has_file else None
                try:
                    kernel = load_kernel(
                        order.kernel, Source(order.name, order.source, fd, order.threads, order.options)
                    )
                finally:
                    if fd is not None:
                        os.close(fd)
                report.inputs, report.outputs, report.pure = kernel.inputs, kernel.outputs, kernel.pure
                self._kernels[order.line, order.generation] = kernel
                self._worker.set_kernel(order.line, order.generation, kernel, self._spill)
        except BaseException as error:
            report.error = wire.failure_of(error)
        report.seconds = time.perf_counter() - start
        self.report(report)

    def _dropped(self, what: str, index: int, epoch: int) -> None:
        # Called by the loop, between two requests.
        if what == "kernel":
            kernel = self._kernels.pop((index, epoch), None)
            if kernel is not None:
                with contextlib.suppress(Exception):
                    kernel.close()
                del kernel
                gc.collect()
                _give_memory_back()
        with contextlib.suppress(OSError):
            self.report(wire.Dropped(what, index, epoch))

    def _spill(self, record: int, generation: int, outputs: list[Any]) -> None:
        """Outputs that did not fit their slot: into a region of their own, which the host passes on."""
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


def _write_all(fd: int, raw: bytes | memoryview, at: int) -> None:
    view = memoryview(raw)
    while view:
        wrote = os.pwrite(fd, view[: 1 << 30], at)
        view = view[wrote:]
        at += wrote


def _give_memory_back() -> None:
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def main(argv: list[str]) -> int:
    control_fd, pool_fd, index = (int(value) for value in argv[1:4])
    cores = [int(core) for core in argv[4].split(",")] if len(argv) > 4 and argv[4] else []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group; the host decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if cores:
        os.sched_setaffinity(0, cores)
    sys.setswitchinterval(1e-4)  # the loop gets the GIL back soon while a model is being loaded
    control = socket.socket(fileno=control_fd)
    if control.family != socket.AF_UNIX:
        raise InternalError("worker: the control descriptor is not a UNIX socket")
    worker = _core.Worker(pool_fd, index)
    side = Control(control, worker)
    side.report(wire.Ready(os.getpid()))
    threading.Thread(target=side.loop, name="control", daemon=True).start()
    side.opened.wait()
    worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
