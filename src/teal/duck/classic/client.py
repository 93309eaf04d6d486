"""A client of the classic protocol: what a host does that judges programs on a duck, or on JudgeDuck-OS itself.

Theory of operation: the buffer is the client's to lay out. ``judge`` puts program, stdin and IB on pages of their own,
each out of the duck's caches when it is there, else in chunks of 1400 bytes and then into the caches; the numbers of
the run go out with a sequence number that no other run has; stdout, stderr and OB are read back. Whatever is lost is
sent again (exchange.py). A duck's buffer has one user at a time: two clients that do not know of each other write over
each other's data, as the protocol has no owner for it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from teal.duck.classic import request as requests
from teal.duck.classic.buffer import PAGE
from teal.duck.classic.exchange import TRIES, Ask, Exchange
from teal.duck.net import split_address
from teal.errors import InternalError, InvalidArgument, NotFound, PeerDied, QuotaExceeded
from teal.host import argument
from teal.host.duration import nanoseconds

_JUDGE_EXTRA_S = 5.0  # beside three times its limit
_FLOATS = ("clock-MHz", "tsc-MHz", "ext-MHz")
_UPLOADS = 3  # of one part that does not arrive as it was sent


@dataclass(frozen=True, slots=True)
class Judged:
    """The record as the duck sent it (19 keys), what was written, and what it took: parts that were in the duck's
    caches, and bytes that were not."""

    record: dict[str, int | float | str]
    stdout: bytes
    stderr: bytes
    ob: bytes
    hits: int
    uploaded: int


class Client:
    """``address``: HOST:PORT. ``window``: datagrams on their way at once; ``tries``: of each. A context manager, not
    thread-safe. Nothing is sent before the first request. Raises InvalidArgument, NotFound (no such address)."""

    def __init__(self, address: str, *, window: int = 64, tries: int = TRIES) -> None:
        host, port = split_address(address)
        try:
            family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        except OSError as error:
            raise NotFound(f"{address}: {error.strerror}") from None
        self.address = address
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self._socket.connect(place)
        self._exchange = Exchange(
            self._socket,
            address,
            window=argument.whole(window, 1, 4096, "$.window"),
            tries=argument.whole(tries, 1, 10_000, "$.tries"),
        )
        self._seq = secrets.randbits(62)
        self._facts: dict[str, str] | None = None

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> dict[str, float]:
        """Of this side: requests, datagrams sent, sent again, answers that nobody waited for, seconds of the timer."""
        found = self._exchange
        return {"requests": found.asked, "sent": found.sent, "sent_again": found.sent_again,
                "unwanted": found.unwanted, "timer_s": found.timer}  # fmt: skip

    # ---- control -----------------------------------------------------------------------------------------------------

    def uptime(self) -> int:
        """Nanoseconds."""
        return int(self._ask("uptime"))

    def runs(self) -> tuple[int, int]:
        """Judged runs, and their nanoseconds together (the command `statistics`)."""
        count, total = self._ask("statistics").split()
        return int(count), int(total)

    def temperature(self) -> float | None:
        """Of its processor, in degrees Celsius, if it knows."""
        said = self._ask("cpu-temp").decode()
        return None if said == "unknown" else int(said) / 1000

    def cpu_model_name(self) -> str:
        return self._ask("cpu-model-name").decode()

    def sysinfo(self) -> dict[str, str]:
        """Facts of its machine."""
        return _facts(self._ask("sysinfo"))

    def query_all(self) -> dict[str, str]:
        """The same, and its sizes and counters."""
        return _facts(self._ask("query-all"))

    def log(self, offset: int = -1000, length: int = 1000) -> tuple[int, str]:
        """(position, text) of its log; a negative ``offset`` counts from the end."""
        at, _, said = self._ask(f"syslog {offset} {length}").partition(b"\n")
        return int(at), said.decode("utf-8", "replace")

    def reboot(self) -> None:
        """There is no answer to it; it may be lost."""
        self._socket.send(b"reboot")

    # ---- the buffer --------------------------------------------------------------------------------------------------

    def buffer_size(self) -> int:
        return int(self._ask("query-buffer-size"))

    def clear(self, offset: int, length: int) -> None:
        self._ask(f"clear-buffer {offset} {length}")

    def copy(self, target: int, source: int, length: int) -> None:
        self._ask(f"copy-buffer {target} {source} {length}")

    def same(self, a: int, b: int, length: int) -> bool:
        """Do two parts of the buffer hold the same?"""
        return self._ask(f"compare-buffer {a} {b} {length}") == b"1"

    def digest(self, offset: int, length: int) -> str:
        """SHA-256 of a part. Not every duck of this protocol can say: see ``extensions``."""
        return self._ask(f"digest-buffer {offset} {length}").decode()

    def extensions(self) -> frozenset[str]:
        """What the duck takes beyond the protocol, by its own word."""
        if self._facts is None:
            self._facts = self.query_all()
        return frozenset(self._facts.get("extensions", "").split())

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """In chunks, each of which is acknowledged by its offset."""
        view = memoryview(data).cast("B")

        def asks() -> Iterator[Ask]:
            for at in range(0, len(view), requests.MOST_READ):
                chunk = view[at : at + requests.MOST_READ]
                echo = b"ok-write-buffer %d %d" % (offset + at, len(chunk))
                yield Ask(requests.write_request(offset + at, chunk), (echo,), f"write-buffer {offset + at}")

        for _ in self._exchange.run(asks()):
            pass

    def read(self, offset: int, length: int) -> bytes:
        """In chunks."""
        found = bytearray(length)

        def asks() -> Iterator[Ask]:
            for at in range(0, length, requests.MOST_READ):
                count = min(requests.MOST_READ, length - at)
                echo = b"ok-read-buffer " + (offset + at).to_bytes(8, "little")
                yield Ask(b"read-buffer %d %d" % (offset + at, count), (echo,), f"read-buffer {offset + at} {count}")

        for ask in self._exchange.run(asks()):
            at = int.from_bytes(ask.answer[15:23], "little") - offset
            data = ask.answer[23:]
            if len(data) != min(requests.MOST_READ, length - at):
                raise PeerDied(f"duck {self.address}", f"it answers read-buffer with {len(data)} bytes")
            found[at : at + len(data)] = data
        return bytes(found)

    # ---- caches ------------------------------------------------------------------------------------------------------

    def load(self, kind: str, offset: int, length: int, digest: str) -> bool:
        """From a cache ("elf" or "data") into the buffer. False: it is not there with exactly that length."""
        return self._cache(f"load-cache {kind} {offset} {length} {digest}")

    def store(self, kind: str, offset: int, length: int, digest: str) -> bool:
        """From the buffer into a cache. False: it is not taken."""
        return self._cache(f"store-cache {kind} {offset} {length} {digest}")

    def info(self, kind: str) -> dict[str, int]:
        """Counters of a cache."""
        names = ("objects", "most_objects", "bytes", "most_bytes", "hits", "misses", "stored", "evicted")
        return dict(zip(names, map(int, self._ask(f"info-cache {kind}").split()), strict=False))

    # ---- runs --------------------------------------------------------------------------------------------------------

    def judge_numbers(self, numbers: tuple[int, ...]) -> dict[str, int | float | str]:
        """The sixteen numbers as they are; the record. The same numbers again: the same run's record, not a run."""
        words = " ".join(map(str, ("judge", *numbers)))
        patience = numbers[1] / 1e9 * 3 + _JUDGE_EXTRA_S
        return _record(self._ask(words, patience=patience))

    def judge(
        self,
        program: bytes | str | os.PathLike[str],
        stdin: bytes = b"",
        *,
        time: float | str = "1s",
        memory: int = 256 << 20,
        stdout: int = 1 << 20,
        stderr: int = 1 << 16,
        ib: bytes = b"",
        ob: int = 0,
        clear_ob: bool = True,
    ) -> Judged:
        """Runs a DuckInfo program once; what was written comes back with the record.

        ``program``: a path, or the bytes of an ELF file. ``time``: CPU seconds, or text such as 100ms. ``memory``: of
        the program's region. ``stdout``, ``stderr``, ``ob``: bytes at most. Raises NotFound, InvalidArgument,
        QuotaExceeded (the buffer is too small), PeerDied.
        """
        contents = program if isinstance(program, bytes) else _file(program)
        sizes = (len(contents), len(stdin), stdout, stderr, len(ib), ob)
        places = _places(sizes, self.buffer_size())
        hits = uploaded = 0
        for kind, place, data in (("elf", 0, contents), ("data", 1, stdin), ("data", 4, ib)):
            hit, sent = self._put(kind, places[place], data)
            hits, uploaded = hits + hit, uploaded + sent
        self._seq += 1
        limit = nanoseconds(time, "$.time")
        ranges = [number for pair in zip(places, sizes, strict=True) for number in pair]
        record = self.judge_numbers((self._seq, limit, -(-memory // 1024), *ranges, int(clear_ob)))
        out = self.read(places[2], min(stdout, int(record["stdout-size"])))
        err = self.read(places[3], min(stderr, int(record["stderr-size"])))
        return Judged(record, out, err, self.read(places[5], ob), hits, uploaded)

    def _put(self, kind: str, offset: int, data: bytes) -> tuple[int, int]:
        """(was it in the cache, bytes that were sent)"""
        if not data:
            return 0, 0
        digest = hashlib.sha256(data).hexdigest()
        if self.load(kind, offset, len(data), digest):
            return 1, 0
        for i in range(_UPLOADS):
            self.write(offset, data)
            # A late duplicate of an older write may have come in between.
            if "digest-buffer" not in self.extensions() or self.digest(offset, len(data)) == digest:
                self.store(kind, offset, len(data), digest)
                return 0, len(data) * (i + 1)
        raise PeerDied(
            f"duck {self.address}", "what is written to its buffer does not stay: somebody else writes to it"
        )

    # ---- one request -------------------------------------------------------------------------------------------------

    def _ask(self, words: str, patience: float = 0.0) -> bytes:
        """What follows the echo in the answer."""
        sent = words.encode()
        echo = b"ok-" + sent
        (ask,) = self._exchange.run([Ask(sent, (echo,), words[:60], patience)])
        return ask.answer[len(echo) :].removeprefix(b" ").removeprefix(b"\n")

    def _cache(self, words: str) -> bool:
        sent = words.encode()
        (ask,) = self._exchange.run([Ask(sent, (b"ok-" + sent, b"fail-" + sent), words[:60])])
        return ask.answer.startswith(b"ok-")


def _facts(said: bytes) -> dict[str, str]:
    pairs = (line.partition(": ") for line in said.decode("utf-8", "replace").splitlines() if ": " in line)
    return {name: value for name, _, value in pairs}


def _record(said: bytes) -> dict[str, int | float | str]:
    found: dict[str, int | float | str] = {}
    for name, value in _facts(said).items():
        try:
            found[name] = value if name in ("status", "reason") else float(value) if name in _FLOATS else int(value)
        except ValueError:
            raise InternalError(f"a record says {name}: {value[:40]}") from None
    for name in ("status", "stdout-size", "stderr-size"):
        if name not in found:
            raise InternalError(f"a record without {name}: the duck is not one of this protocol")
    return found


def _places(sizes: tuple[int, ...], room: int) -> list[int]:
    """Each part on pages of its own. Raises QuotaExceeded, InvalidArgument."""
    places, at = [], 0
    for size in sizes:
        if size < 0:
            raise InvalidArgument(f"{size} bytes, expected 0 or more", path="$.sizes")
        places.append(at)
        at += -(-size // PAGE) * PAGE
    if at > room:
        raise QuotaExceeded(f"program, inputs and outputs take {at} bytes, and the duck's buffer has {room}")
    return places


def _file(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise NotFound(f"{os.fspath(path)}: {error.strerror}") from None
