"""An agent's process as its host sees it: how it is started, spoken to, listened to, and ended.

Theory of operation: the process holds a control socket, a pipe for what it prints, and later the two regions of each
seat; nothing else of the host's. It is believed in nothing: reports that do not decode, that come too fast, or an
order that it does not read, end it. Its death is what its pidfd says, and is told to whoever owns it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

from teal.errors import DeadlineExceeded, PeerDied, TealError
from teal.host import agent_wire, wire
from teal.host.audit import printable
from teal.host.fate import how_it_ended

log = logging.getLogger("teal.host")

_MOST_REPORTS = 200  # a second; a well-behaved agent answers what it is asked
_MOST_LINES = 20  # of what it prints, a second
_PRINTED = 4096  # bytes of a line
_PAUSE = 0.1  # seconds for which an agent that prints too much is not read
_CAP_SYS_NICE = 23  # linux/capability.h
_LIBRARIES_ALONE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

OnEnd = Callable[["AgentProcess", str], None]
OnReport = Callable[["AgentProcess", agent_wire.AgentReport], None]
Wake = Callable[[], None]


class AgentProcess:
    """One child. ``on_end(self, why)`` is called once, on the loop, when it is gone."""

    def __init__(self, name: str, on_report: OnReport, on_end: OnEnd, wake: Wake) -> None:
        self.name = name  # for the log
        self._wake = wake  # it sleeps on its seats' bells: who sends it something rings there too
        self.gone = False
        self.why = ""  # it was ended by us, and that is why
        self._on_report = on_report
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._pidfd = -1
        self._printed = _Printed(self)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._second = 0.0
        self._reports = 0
        self._is_gentle = False
        self.ready = asyncio.Event()  # it has imported what it needs, or has gone

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def started(self) -> bool:
        return self._process is not None

    def adopt(self, name: str, on_report: OnReport, on_end: OnEnd, wake: Wake) -> None:
        """From now on it is this agent's, and they hear of it. Somebody waits for it now, so it takes its turns."""
        self.gentle(False)
        self.name, self._on_report, self._on_end, self._wake = name, on_report, on_end, wake

    def start(self, *, gently: bool = False) -> None:
        """gently: see gentle(), until it has imported what it needs. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write_end, True)
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment |= dict.fromkeys(_LIBRARIES_ALONE, "1")  # threads that a library starts would have no walls
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "teal=inside", "-m", "teal.agents.process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                env=environment,
            )
        except BaseException:
            os.close(read_end)
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(write_end)
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._read)
        self._printed.open(read_end)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._died)
        if gently and _may_come_back():
            self.gentle(True)

    def send(self, order: agent_wire.AgentOrder, fds: tuple[int, ...] = ()) -> None:
        """Posts an order. One that it has no room for ends it: there are never many."""
        if self._socket is None or self.gone:
            return
        try:
            wire.send(self._socket, order, fds)
            self._wake()
        except BlockingIOError:
            self.end("it does not read what it is told")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has gone; its pidfd says so too
        except OSError as error:
            self.end(f"it cannot be told anything: {error}")

    async def ask(self, order: agent_wire.AgentOrder, key: str, seconds: float, fds: tuple[int, ...] = ()) -> Any:
        """Sends an order and waits for the report with that key. Raises PeerDied, DeadlineExceeded."""
        if self.gone:
            raise PeerDied("agent", self.why or "it is gone")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[key] = future
        try:
            self.send(order, fds)
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            raise DeadlineExceeded(f"agent process {self.pid} did not answer within {seconds:g} s") from None
        finally:
            self._waiting.pop(key, None)

    def asked(self, key: str) -> bool:
        """Does somebody wait for that report?"""
        return key in self._waiting

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
                self._loop.call_later(1.0, self.end, "it closed its control socket and stayed")
                return
            datagram.close()  # an agent has no descriptor to give
            if not self._within_bounds():
                self.end(f"it sent more than {_MOST_REPORTS} reports in a second")
                return
            try:
                report = agent_wire.decode_report(datagram.data)
                if isinstance(report, agent_wire.Ready):
                    self.gentle(False)
                    self.ready.set()
                self._settle(report)
                self._on_report(self, report)
            except Exception as error:
                self.end(f"it said what makes no sense ({printable(str(error))})")
                return

    def _within_bounds(self) -> bool:
        now = self._loop.time()
        if now - self._second >= 1.0:
            self._second, self._reports = now, 0
        self._reports += 1
        return self._reports <= _MOST_REPORTS

    def _settle(self, report: agent_wire.AgentReport) -> None:
        future = self._waiting.get(_key(report))
        if future is not None and not future.done():
            future.set_result(report)

    def _died(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._read()  # what it still said counts: a fault is the reason for its end
        assert self._process is not None
        words, _ = how_it_ended(self._process.wait())
        self.gone = True
        self.ready.set()
        self._close_socket()
        self._printed.close()
        why = self.why or words
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(PeerDied("agent", why))
        self._on_end(self, why)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def place(self, cores: Iterable[int]) -> None:
        """Runs on these from now on."""
        if not self.gone:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(self.pid, set(cores))

    @property
    def is_gentle(self) -> bool:
        return self._is_gentle and not self.gone

    def gentle(self, on: bool) -> None:
        """Runs while nobody else wants its core, and makes way at once; else the kernel has them take turns of 4 ms.

        For one that nobody waits for, where another one serves.
        """
        if self._process is None or self.gone or on == self._is_gentle:
            return
        self._is_gentle = on
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(self.pid, os.SCHED_IDLE if on else os.SCHED_OTHER, os.sched_param(0))

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and not self.gone:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def end(self, why: str) -> None:
        """Kills it; why is what its owner is told. Frozen ones end too."""
        if not self.gone:
            self.why = self.why or why
            self.signal(signal.SIGKILL)

    def forget(self) -> None:
        """In a forked child: closes its copies."""
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._pidfd)
        self._pidfd = -1
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._printed.forget()


def _may_come_back() -> bool:
    """May we give a process that runs when nothing else does (SCHED_IDLE) its time back? It takes CAP_SYS_NICE."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        line = next((line for line in status if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(line.split()[1], 16) >> _CAP_SYS_NICE & 1)


def _key(report: agent_wire.AgentReport) -> str:
    match report:
        case agent_wire.Begun():
            return "begun"
        case agent_wire.Seated(pool, incarnation):
            return f"seated {pool} {incarnation}"
        case agent_wire.Changed(pool):
            return f"changed {pool}"
        case agent_wire.Named(pool, index):
            return f"named {pool} {index}"
        case agent_wire.Looked():
            return "looked"
    return ""


class _Printed:
    """What an agent prints: into the host's log, some lines a second, the rest counted."""

    def __init__(self, process: AgentProcess) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._rest = b""
        self._second = 0.0
        self._lines = 0
        self._left_out = 0

    def open(self, fd: int) -> None:
        self._fd = fd
        self._loop.add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:_PRINTED]
        for line in lines:
            self._log(line)
        if self._lines > _MOST_LINES:
            self._loop.remove_reader(self._fd)
            self._loop.call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._read)

    def _log(self, line: bytes) -> None:
        now = self._loop.time()
        if now - self._second >= 1.0:
            if self._left_out:
                log.info("agent %s: %d more lines", self._process.name, self._left_out)
            self._second, self._lines, self._left_out = now, 0, 0
        self._lines += 1
        if self._lines <= _MOST_LINES:
            log.info("agent %s: %s", self._process.name, printable(line[:_PRINTED].decode("utf-8", "replace")))
        else:
            self._left_out += 1

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._loop.remove_reader(fd)
            with contextlib.suppress(OSError):  # the last words of one that ended
                self._rest += os.read(fd, 65_536)
            for line in self._rest.split(b"\n"):
                if line:
                    self._log(line)
            os.close(fd)

    def forget(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
