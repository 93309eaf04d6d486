"""A judged run of the classic protocol: sixteen numbers in, a record in text out.

Theory of operation: the numbers name six ranges of the flat buffer, which lie in it and share no byte. Stdin, IB and OB
are mapped into the box where they are if they begin and end on page boundaries; otherwise they are copied, which is
counted. Stdout and stderr are fresh zeros for each run, and what the program says it wrote is copied back. The run
itself is that of every judged DuckInfo program (core/box/duckinfo.hpp).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from teal import _core
from teal.duck import blob as blobs
from teal.duck.classic.buffer import PAGE, Buffer, overlap
from teal.duck.residents import Residents
from teal.errors import Closed, InvalidArgument, QuotaExceeded

# The record's keys, in the order in which they travel.
KEYS = (
    "count-inst", "clk-thread", "clk-ref-tsc", "clock-MHz", "tsc-MHz", "ext-MHz", "time-ns", "time-ns-ref-tsc",
    "time-ns-real", "time-tsc", "memory-kb", "memory-kb-accessed", "stdout-size", "stderr-size", "return-code",
    "trap-num", "trap-epc", "trap-cr2", "status",
)  # fmt: skip
FAILED = "Judge Failed"
PARTS = ("elf", "stdin", "stdout", "stderr", "ib", "ob")
_MOST_REASON = 300


@dataclass(frozen=True, slots=True)
class Order:
    """The numbers of a judge request, by name. A range is (offset, length)."""

    seq: int
    time_ns: int
    memory: int
    ranges: tuple[tuple[int, int], ...]
    clear_ob: bool

    @property
    def outputs(self) -> int:
        """Bytes that the run may write beside its memory."""
        return sum(length for _, length in self.ranges[2:4])


def order_of(numbers: tuple[int, ...], buffer: Buffer) -> Order | None:
    """None: the ranges are not all in the buffer, or two of them overlap, or the last number is neither 0 nor 1."""
    ranges = tuple(zip(numbers[3:15:2], numbers[4:15:2], strict=True))
    if numbers[15] > 1 or not all(buffer.has(*one) for one in ranges):
        return None
    if any(overlap(a, b) for a, b in combinations(ranges, 2)):
        return None
    return Order(numbers[0], numbers[1], numbers[2] * 1024, ranges, numbers[15] == 1)


class Runs:
    """One at a time. ``room``: bytes that a program's memory and outputs may have."""

    def __init__(self, yard: Callable[[], _core.DuckYard], residents: Residents, buffer: Buffer, room: int) -> None:
        self._yard = yard
        self._residents = residents
        self._buffer = buffer
        self.room = room
        self.mapped_bytes = self.copied_bytes = 0

    def judge(self, order: Order) -> dict[str, Any]:
        """The record: ``KEYS``, and reason where it failed."""
        try:
            if order.memory + order.outputs > self.room:
                raise QuotaExceeded(
                    f"memory of {order.memory} bytes, outputs of {order.outputs}: this duck has {self.room} for a run"
                )
            with self._residents.holding(order.memory + order.outputs):
                return self._run(order, self._program(*order.ranges[0]))
        except InvalidArgument as error:
            return _failed(f"Can't load ELF: {error}")
        except (QuotaExceeded, Closed, OSError) as error:
            return _failed(str(error))

    def _program(self, offset: int, length: int) -> _core.DuckProgram:
        if not length:
            raise InvalidArgument("it has 0 bytes")
        blob = blobs.from_bytes(self._buffer.view[offset : offset + length])
        try:
            return self._residents.program(blob, "program", duckinfo=True)
        finally:
            blob.close()

    def _run(self, order: Order, program: _core.DuckProgram) -> dict[str, Any]:
        _, given, out, err, ib, ob = order.ranges
        with (
            self._part(given) as (in_fd, in_offset),
            self._part(ib) as (ib_fd, ib_offset),
            self._part(ob, back=True, fresh=order.clear_ob) as (ob_fd, ob_offset),
            _zeros() as out_fd,
            _zeros() as err_fd,
        ):
            record = self._yard().judge_duckinfo(program, {
                "time_limit_ns": order.time_ns, "memory_bytes": order.memory, "clear_ob": order.clear_ob,
                "in": in_fd, "in_offset": in_offset, "in_bytes": given[1],
                "ib": ib_fd, "ib_offset": ib_offset, "ib_bytes": ib[1],
                "ob": ob_fd, "ob_offset": ob_offset, "ob_bytes": ob[1],
                "out": out_fd, "out_limit": out[1], "err": err_fd, "err_limit": err[1],
            })  # fmt: skip
            self._take(out_fd, out, record["stdout-size"])
            self._take(err_fd, err, record["stderr-size"])
        return record

    @contextmanager
    def _part(self, where: tuple[int, int], *, back: bool = False, fresh: bool = False) -> Iterator[tuple[int, int]]:
        """(descriptor, offset) of a part of the buffer: itself, or a copy that goes ``back`` after the run."""
        offset, length = where
        if not length:
            yield -1, 0
        elif (offset | length) % PAGE == 0:
            self.mapped_bytes += length
            yield self._buffer.fd, offset
        else:
            with _zeros() as fd:
                if not fresh:
                    _write_all(fd, self._buffer.view[offset : offset + length])
                else:
                    os.ftruncate(fd, length)
                self.copied_bytes += length * (1 + back)
                yield fd, 0
                if back:
                    self._take(fd, where, length)

    def _take(self, fd: int, where: tuple[int, int], nbytes: int) -> None:
        """What was written goes into the buffer."""
        offset, length = where
        left = self._buffer.view[offset : offset + min(nbytes, length)]
        at = 0
        while at < len(left):
            got = os.preadv(fd, [left[at:]], at)
            if got == 0:
                break
            at += got


def text(record: dict[str, Any]) -> bytes:
    """As it travels: a line for each key, and the reason if it failed."""
    lines = [f"{key}: {record[key]}" for key in KEYS]
    if record["status"] == FAILED:
        reason = "".join(c if c.isprintable() else " " for c in record["reason"])[:_MOST_REASON]
        lines.append(f"reason: {reason or 'not judged'}")
    return "\n".join(lines).encode("ascii", "replace")


def _failed(reason: str) -> dict[str, Any]:
    return {**dict.fromkeys(KEYS, 0), "status": FAILED, "reason": reason}


@contextmanager
def _zeros() -> Iterator[int]:
    fd = os.memfd_create("teal:run", os.MFD_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _write_all(fd: int, data: memoryview) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at : at + (1 << 30)], at)
