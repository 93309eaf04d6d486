"""A worker process as its host sees it: how it is started, spoken to, and buried."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from teal.errors import PeerDied, TealError
from teal.host import wire


def how_it_ended(status: int) -> tuple[str, int]:
    """Words and the number in a completion line, for a return code as subprocess gives it (negative: signal)."""
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = "unknown signal"
        return f"signal {-status} {name}", -status
    return f"exit status {status}", 256 + status


def how_detail_reads(detail: int) -> str:
    """The words for the number that bury_worker() left in a completion line."""
    return how_it_ended(detail - 256 if detail >= 256 else -detail)[0]


class WorkerProcess:
    """One worker: its child process and control socket, on the daemon's event loop."""

    def __init__(
        self, index: int, on_report: Callable[[WorkerProcess, wire.WorkerReport, wire.Datagram], None]
    ) -> None:
        self.index = index
        self.ready = False
        self.open = False
        self.gone = False
        self.stopping = False
        self._on_report = on_report
        self._waiting: dict[tuple[str, int, int], asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._pidfd = -1

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def start(self, pool_fd: int, cores: Sequence[int], on_death: Callable[[WorkerProcess, int], None]) -> None:
        """Starts the child. ``on_death(self, status)`` is called on the loop when it is gone."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        arguments = [str(theirs.fileno()), str(pool_fd), str(self.index), ",".join(map(str, cores))]
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "teal.host.worker", *arguments],
                pass_fds=(theirs.fileno(), pool_fd),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        finally:
            theirs.close()
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._read)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._died, on_death)

    def send(self, order: wire.WorkerOrder, fds: tuple[int, ...] = ()) -> None:
        """Posts an order. A worker that is gone gets nothing; its death is reported elsewhere."""
        if self._socket is None or self.gone:
            return
        try:
            wire.send(self._socket, order, fds)
        except BlockingIOError:
            # Its control thread has not read for a whole socket buffer: it is stuck. Its replacement will not be.
            self.kill()
        except OSError:
            pass

    async def ask(self, order: wire.WorkerOrder, key: tuple[str, int, int], fds: tuple[int, ...] = ()) -> Any:
        """Sends an order and waits for the report that answers it. Raises PeerDied when the worker goes first."""
        if self.gone:
            raise PeerDied("worker", "it is gone")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[key] = future
        self.send(order, fds)
        try:
            return await future
        finally:
            self._waiting.pop(key, None)

    def _read(self) -> None:
        while self._socket is not None:
            try:
                datagram = wire.receive(self._socket)
            except BlockingIOError:
                return
            except (OSError, TealError):
                datagram = None
            if datagram is None:
                self._close_socket()
                return
            try:
                report = wire.decode_report(datagram.data)
                self._settle(report)
                self._on_report(self, report, datagram)
            finally:
                datagram.close()

    def _settle(self, report: wire.WorkerReport) -> None:
        match report:
            case wire.Ready():
                self.ready = True
                key = ("ready", 0, 0)
            case wire.Loaded(line, generation):
                key = ("kernel", line, generation)
            case wire.Dropped(what, index, epoch):
                key = (f"drop {what}", index, epoch)
            case _:
                return
        future = self._waiting.get(key)
        if future is not None and not future.done():
            future.set_result(report)

    async def until_ready(self) -> None:
        if self.ready:
            return
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting["ready", 0, 0] = future
        await future

    def _died(self, on_death: Callable[[WorkerProcess, int], None]) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._read()  # what it still said (a spill) counts before its death does
        assert self._process is not None
        status = self._process.wait()
        self.gone = True
        self._close_socket()
        words, _ = how_it_ended(status)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(PeerDied("worker", words))
        on_death(self, status)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def kill(self) -> None:
        if self._process is not None and not self.gone:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
