"""The hatch of a duck: answers JudgeDuck-OS's own protocol over UDP, one datagram in, at most one out.

Theory of operation: one thread reads datagrams and answers them one after the other; a judged run, and a reboot, is
done by a second one; its runs have a yard of their own, so that a reboot or the end of the duck ends them at once,
and nothing else. Whoever resends gets the same again: every request may be repeated, the answer echoes what it
answers, and the result of the last run is kept under all sixteen numbers until something else is written to the buffer.
While a program runs in the buffer, requests that touch it get no answer, and are sent again. What is malformed or out
of range gets none either, and is counted.

The protocol has no authentication and no encryption: whoever can send a datagram may run programs, read and overwrite
the buffer, and end every session of the duck (reboot). So a hatch is for loopback, unless it is told that the network
can be trusted. docs/duck-classic.md says what of this is the reference's.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from teal import _core
from teal.duck.classic import facts
from teal.duck.classic import port as ports
from teal.duck.classic import request as requests
from teal.duck.classic import run as runs
from teal.duck.classic.buffer import PAGE, Buffer, overlap
from teal.duck.classic.request import Request
from teal.duck.classic.store import MOST, Store
from teal.duck.journal import Journal
from teal.duck.yards import Yards
from teal.errors import InvalidArgument

if TYPE_CHECKING:
    from teal.duck.server import Server

log = logging.getLogger("teal.duck")

_RING = 32 << 10  # of the log
_BATCH = 64
_ROOM = 320 << 20  # for a run of 256 MiB and its outputs
_TEXT = requests.MOST_READ
_TOUCHES = frozenset(  # the buffer: not while a program runs in it
    {"clear-buffer", "read-buffer", "write-buffer", "copy-buffer", "compare-buffer", "digest-buffer", "load-cache",
     "store-cache"}
)  # fmt: skip


@dataclass(slots=True)
class _Result:
    numbers: tuple[int, ...]
    reply: bytes


@dataclass(slots=True)
class _Running:
    numbers: tuple[int, ...]
    words: bytes
    asker: Any  # who asked last


class Hatch:
    """Serves from the start until ``close``. ``listen``: HOST:PORT, port 0: any.

    ``trusted``: also beyond loopback. ``buffer``: bytes of the flat buffer [half of what the duck has for sessions, or
    less, so that a run has its room]; it counts against the duck's budget, and the rest bounds the memory of a run.
    Raises InvalidArgument (address), Busy (the port is taken), QuotaExceeded.
    """

    def __init__(self, server: Server, listen: str, *, trusted: bool = False, buffer: int | None = None) -> None:
        family, place = ports.resolved(listen, trusted)
        self._server = server
        whole = server.budget.sessions
        nbytes = _whole_pages(_share(whole) if buffer is None else buffer)
        server.residents.reserve(nbytes)
        self._reserved = nbytes
        try:
            self._socket = ports.bound(family, place, listen)
        except BaseException:
            server.residents.reserve(-nbytes)
            raise
        self._buffer = Buffer(nbytes)
        self._yards = Yards(_sandbox(server), 0)
        self._runs = runs.Runs(self._yard, server.residents, self._buffer, max(whole - nbytes, 0))
        self.stores = {"elf": Store(server.programs, MOST["elf"]), "data": Store(server.data, MOST["data"])}
        self._journal = Journal(_RING)
        log.addHandler(self._journal)
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic_ns()
        self._runs_done = self._run_ns = 0
        self._result: _Result | None = None
        self._running: _Running | None = None
        self._rebooting = False
        self._jobs: queue.SimpleQueue[Callable[[], Callable[[], None]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._threads = [
            threading.Thread(target=self._serve, name="teal-duck-hatch", daemon=True),
            threading.Thread(target=self._work, name="teal-duck-hatch-run", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        log.info("classic protocol at %s, a buffer of %d MiB%s", self.address, nbytes >> 20,
                 "; no authentication: whoever reaches it may run programs" if trusted else "")  # fmt: skip

    def close(self) -> None:
        """A run that is going on is ended."""
        if self._closed:
            return
        self._closed = True
        self._yards.close()
        self._jobs.put(None)
        os.eventfd_write(self._wake, 1)
        for thread in self._threads:
            thread.join()
        self._socket.close()
        os.close(self._wake)
        self._buffer.close()
        self._server.residents.reserve(-self._reserved)
        log.removeHandler(self._journal)

    def statistics(self) -> dict[str, Any]:
        """Counters since the start or the last reboot. Datagrams without an answer are malformed, out_of_range or
        while_running; results_again: of a judge that was asked for again; results_dropped: by writing to the buffer."""
        names = ("datagrams", "replies", "not_sent", "malformed", "out_of_range", "while_running", "results_again",
                 "results_dropped", "reboots")  # fmt: skip
        return {
            "address": self.address,
            "buffer_bytes": self._buffer.nbytes,
            "runs": self._runs_done,
            "run_ns": self._run_ns,
            "mapped_bytes": self._runs.mapped_bytes,
            "copied_bytes": self._runs.copied_bytes,
            **{name: self._counts[name] for name in names},
            "caches": {kind: store.numbers() for kind, store in self.stores.items()},
        }

    # ---- threads -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._closed:
            poll.poll()
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                pass
            while not self._done.empty():
                self._done.get()()
            for _ in range(_BATCH):
                try:
                    datagram, sender = self._socket.recvfrom(requests.MOST_DATAGRAM + 1)
                except BlockingIOError:
                    break
                except OSError as error:  # somebody who was answered is not there any more
                    log.debug("classic protocol: %s", error)
                    continue
                self._take(datagram, sender)

    def _take(self, datagram: bytes, sender: Any) -> None:
        self._counts["datagrams"] += 1
        request = requests.parse(datagram)
        if request is None:
            self._counts["malformed"] += 1
            return
        reply = self._judge(request, sender) if request.name == "judge" else self._answer(request)
        if reply is not None:
            self._send(reply, sender)

    def _send(self, reply: bytes, sender: Any) -> None:
        try:
            self._socket.sendto(reply, sender)
            self._counts["replies"] += 1
        except OSError:  # the way is full or gone: it will be asked for again
            self._counts["not_sent"] += 1

    def _yard(self) -> _core.DuckYard:
        found = self._yards.get(None)
        assert isinstance(found, _core.DuckYard)  # _sandbox()
        return found

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            after = job()
            self._done.put(after)
            os.eventfd_write(self._wake, 1)

    # ---- judge and reboot --------------------------------------------------------------------------------------------

    def _judge(self, request: Request, sender: Any) -> bytes | None:
        numbers = request.numbers
        if self._running is not None and self._running.numbers == numbers:
            self._running.asker = sender
            return self._silent("while_running")
        if self._running is not None or self._rebooting:
            return self._silent("while_running")
        if self._result is not None and self._result.numbers == numbers:
            self._counts["results_again"] += 1
            return self._result.reply
        order = runs.order_of(numbers, self._buffer)
        if order is None:
            return self._silent("out_of_range")
        self._result = None
        self._running = _Running(numbers, request.words, sender)

        def job() -> Callable[[], None]:
            try:
                record = self._runs.judge(order)
            except Exception as error:  # ours: the duck goes on, and the client is told
                log.exception("a judged run")
                record = runs._failed(f"{type(error).__name__}: {error}")
            return lambda: self._judged(record)

        self._jobs.put(job)
        return None

    def _judged(self, record: dict[str, Any]) -> None:
        running = self._running
        assert running is not None
        self._running = None
        self._runs_done += 1
        self._run_ns += record["time-ns"]
        log.info("judge %d: %s, %d ns", running.numbers[0], record["status"], record["time-ns"])
        if self._rebooting:
            return
        self._result = _Result(running.numbers, b"ok-%s\n%s" % (running.words, runs.text(record)))
        self._send(self._result.reply, running.asker)

    def _reboot(self) -> None:
        """Runs and sessions end, the buffer is zeros, names of caches are forgotten."""
        if self._rebooting:
            return
        self._rebooting = True
        self._yards.close()

        def job() -> Callable[[], None]:
            self._yards = Yards(_sandbox(self._server), 0)
            if self._closed:
                self._yards.close()
            ended = self._server.residents.close_all(None)
            self._buffer.clear(0, self._buffer.nbytes)
            return lambda: self._rebooted(ended)

        self._jobs.put(job)

    def _rebooted(self, ended: int) -> None:
        for store in self.stores.values():
            store.forget()
        self._result = None
        self._rebooting = False
        self._counts["reboots"] += 1
        self._began = time.monotonic_ns()
        self._runs_done = self._run_ns = 0
        log.info("reboot: %d session(s) ended, the buffer is empty", ended)

    # ---- everything else ---------------------------------------------------------------------------------------------

    def _silent(self, why: str) -> bytes | None:
        """No answer."""
        self._counts[why] += 1
        return None

    def _answer(self, request: Request) -> bytes | None:
        if request.name == "reboot":
            self._reboot()
            return None
        if request.name in _TOUCHES:
            if self._running is not None or self._rebooting:
                return self._silent("while_running")
            if request.kind:
                return self._cache(request)
            return self._data(request)
        said = self._control(request)
        return b"ok-" + request.words + (b" " if said else b"") + said

    def _control(self, request: Request) -> bytes:
        match request.name:
            case "uptime":
                return b"%d" % (time.monotonic_ns() - self._began)
            case "statistics":
                return b"%d %d" % (self._runs_done, self._run_ns)
            case "cpu-temp":
                return facts.temperature().encode()
            case "cpu-model-name":
                return facts.cpu_model().encode("ascii", "replace")
            case "query-buffer-size":
                return b"%d" % self._buffer.nbytes
            case "info-cache":
                return b" ".join(b"%d" % value for value in self.stores[request.kind].numbers().values())
            case "syslog":
                start, most = request.numbers
                at, said, _ = self._journal.read(start, min(most, _TEXT - 128))
                return b"%d\n%s" % (at, said.encode("utf-8", "replace")[: _TEXT - 128])
            case "sysinfo":
                return facts.lines(facts.machine_facts())
            case _:  # query-all
                return facts.lines({**facts.machine_facts(), **self._numbers()})

    def _numbers(self) -> dict[str, Any]:
        caches = {
            f"{kind}-cache": " ".join(str(value) for value in store.numbers().values())
            for kind, store in self.stores.items()
        }
        return {
            "uptime": time.monotonic_ns() - self._began,
            "runs": self._runs_done,
            "total-ns": self._run_ns,
            "buffer-size": self._buffer.nbytes,
            "program-memory-kb": self._runs.room // 1024,
            **caches,
            "judging": int(self._running is not None),
        }

    def _data(self, request: Request) -> bytes | None:
        buffer, numbers = self._buffer, request.numbers
        if request.name == "write-buffer":
            if not buffer.has(numbers[0], len(request.data)):
                return self._silent("out_of_range")
            buffer.write(numbers[0], request.data)
            return self._changed(request, len(request.data))
        length = numbers[-1]
        starts = numbers[:-1]
        if not all(buffer.has(start, length) for start in starts):
            return self._silent("out_of_range")
        match request.name:
            case "clear-buffer":
                buffer.clear(starts[0], length)
                return self._changed(request, length)
            case "copy-buffer":
                if overlap((starts[0], length), (starts[1], length)):
                    return self._silent("out_of_range")
                buffer.copy(starts[0], starts[1], length)
                return self._changed(request, length)
            case "compare-buffer":
                return b"ok-%s %d" % (request.words, buffer.same(starts[0], starts[1], length))
            case "digest-buffer":
                return b"ok-%s %s" % (request.words, buffer.digest(starts[0], length).encode())
            case _:  # read-buffer
                if length > requests.MOST_READ:
                    return self._silent("out_of_range")
                return b"ok-read-buffer " + starts[0].to_bytes(8, "little") + buffer.read(starts[0], length)

    def _cache(self, request: Request) -> bytes | None:
        offset, length = request.numbers
        if not self._buffer.has(offset, length):
            return self._silent("out_of_range")
        store = self.stores[request.kind]
        part = self._buffer.view[offset : offset + length]
        if request.name == "store-cache":
            return (b"ok-" if store.store(request.digest, part) else b"fail-") + request.words
        with store.using(request.digest, length) as blob:
            if blob is None:
                return b"fail-" + request.words
            at = 0
            while at < length:
                at += os.preadv(blob.fd, [part[at:]], at)
        return self._changed(request, length)

    def _changed(self, request: Request, length: int) -> bytes:
        if length and self._result is not None:
            self._result = None
            self._counts["results_dropped"] += 1
        return b"ok-" + request.words


def _sandbox(server: Server) -> str:
    """Of its boxes: whoever reaches this port may use them, and a duck's own process is no place for that."""
    return "process" if server.yards.default == "inline" else server.yards.default


def _share(sessions: int) -> int:
    """Half of it, but a run has ``_ROOM``; and a quarter at least."""
    return max(sessions // 4, min(sessions // 2, sessions - _ROOM))


def _whole_pages(nbytes: int) -> int:
    if not PAGE <= nbytes < 1 << 48:
        raise InvalidArgument(f"{nbytes} bytes, expected at least a page of {PAGE}", path="$.classic_buffer")
    return nbytes // PAGE * PAGE
