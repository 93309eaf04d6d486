"""A worker process as its host sees it: how it is started, spoken to, and buried.

Theory of operation: orders go out in order and none is lost: what the socket does not take now (the worker is busy or
stopped, or too many descriptors are under way) waits in an outbox that holds descriptors of its own. The worker's
death is what its pidfd says; a worker that stops making sense is killed, and then dies like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from teal.errors import PeerDied, TealError
from teal.host import wire
from teal.host.fate import how_it_ended

log = logging.getLogger("teal.host")

_OUTBOX = 65_536  # orders that wait; a worker this far behind will not catch up
_LAST_SECOND = 1.0
_TOO_MANY_UNDER_WAY = 0.02  # seconds until descriptors that nobody has received yet may have become fewer

OnDeath = Callable[["WorkerProcess", int, tuple[int, int] | None], None]


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
        self._outbox: deque[tuple[wire.WorkerOrder, tuple[int, ...]]] = deque()
        self._loads: dict[tuple[int, int], asyncio.Task[wire.Loaded]] = {}
        self._loading: tuple[int, int] | None = None
        self.on_death: OnDeath | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def loading(self) -> tuple[int, int] | None:
        """Line and generation of the version that its loader sits in."""
        return self._loading

    def start(
        self, pool_fd: int, cores: Sequence[int], on_death: OnDeath, lender: tuple[int, int, int] | None = None
    ) -> None:
        """Starts the child. ``on_death(self, status, what it was loading)`` is called on the loop when it is gone.

        ``lender``: of a lent worker, descriptors of the lender's pool and loans, and the worker whose time it uses.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        arguments = [str(theirs.fileno()), str(pool_fd), str(self.index), ",".join(map(str, cores))]
        arguments += map(str, lender or ())
        environment = dict(os.environ)
        # onnxruntime 1.32 and later keep a database in the user's home and report to their maker, unless told not to.
        for name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):
            environment.setdefault(name, "1")
        # Threads of a parallel region wait for the next one a tenth of a millisecond, and not until somebody else
        # needs their core (libgomp; libiomp). OpenVINO's sleep by themselves, onnxruntime's are told to.
        if "OMP_WAIT_POLICY" not in environment:
            environment.setdefault("GOMP_SPINCOUNT", "5000")
            environment.setdefault("KMP_BLOCKTIME", "0")
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "teal=inside", "-m", "teal.host.worker", *arguments],
                pass_fds=(theirs.fileno(), pool_fd, *(lender or ())[:2]),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        finally:
            theirs.close()
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._read)
        self._pidfd = os.pidfd_open(self._process.pid)
        self.on_death = on_death
        self._loop.add_reader(self._pidfd, self._died)

    def send(self, order: wire.WorkerOrder, fds: tuple[int, ...] = ()) -> None:
        """Posts an order. A worker that is gone gets nothing; its death is reported elsewhere."""
        if self._socket is None or self.gone:
            return
        if self._outbox or not self._sent(order, fds):
            copies: list[int] = []
            try:
                copies.extend(os.dup(fd) for fd in fds)
            except OSError:  # no descriptor left to keep the order with: its replacement is told everything anew
                for fd in copies:
                    os.close(fd)
                self.kill()
                return
            self._outbox.append((order, tuple(copies)))
            if len(self._outbox) > _OUTBOX:
                log.warning("worker process %d has not read %d orders: killing it", self.pid, len(self._outbox))
                self.kill()

    def _sent(self, order: wire.WorkerOrder, fds: tuple[int, ...]) -> bool:
        """False: not now; _flush() will be called."""
        assert self._socket is not None
        try:
            wire.send(self._socket, order, fds)
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._flush)
            return False
        except OSError as error:
            if error.errno not in (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM):
                return True  # it has gone
            self._loop.remove_writer(self._socket.fileno())
            self._loop.call_later(_TOO_MANY_UNDER_WAY, self._flush)
            return False
        return True

    def _flush(self) -> None:
        if self._socket is None:
            return
        while self._outbox:
            order, fds = self._outbox[0]
            if not self._sent(order, fds):
                return
            self._outbox.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._socket.fileno())

    def forget(self) -> None:
        """In a forked child: closes its copies, so that the worker hears of our end whatever the child does."""
        for fd in (self._pidfd, *(fd for _, fds in self._outbox for fd in fds)):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._pidfd = -1
        self._outbox.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def load(self, order: wire.LoadKernel, fds: tuple[int, ...]) -> wire.Loaded:
        """The report of the one time this worker loads that version; ``fds``: what goes with it. Raises PeerDied."""
        key = (order.line, order.generation)
        task = self._loads.get(key)
        if task is None:
            task = self._loads[key] = self._loop.create_task(self.ask(order, ("kernel", *key), fds))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, though nobody may wait
        return await asyncio.shield(task)

    def drop_kernel(self, line: int, generation: int) -> None:
        self._loads.pop((line, generation), None)

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
                if not self.stopping:  # it leaves, or a kernel closed its socket: it must not stay without us
                    self._loop.call_later(_LAST_SECOND, self.kill)
                return
            try:
                report = wire.decode_report(datagram.data)
                self._settle(report)
                self._on_report(self, report, datagram)
            except Exception as error:
                log.error("worker process %d said what makes no sense (%s): killing it", self.pid, error)
                self.kill()
            finally:
                datagram.close()

    def _settle(self, report: wire.WorkerReport) -> None:
        match report:
            case wire.Ready():
                self.ready = True
                key = ("ready", 0, 0)
            case wire.Loading(line, generation):
                self._loading = (line, generation)
                return
            case wire.Loaded(line, generation):
                self._loading = None
                key = ("kernel", line, generation)
            case wire.Warmed(line, generation):
                key = ("warmed", line, generation)
            case wire.SeatAdded(seat, incarnation):
                key = ("add seat", seat, incarnation)
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

    def _died(self) -> None:
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
        if self.on_death is not None:
            self.on_death(self, status, self._loading)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
        while self._outbox:
            for fd in self._outbox.popleft()[1]:
                os.close(fd)

    def kill(self) -> None:
        if self._process is not None and not self.gone:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
