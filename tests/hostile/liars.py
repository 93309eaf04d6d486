"""Policies that write to their desk beside the loop that they are called by. Agents import this file by its path.

Theory of operation: the desk is theirs to scribble on (docs/protocol.md), and nothing keeps a policy from mapping it
once more. What they write has the right form, so that it is refused for what it says, or has to be carried out.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import struct
from typing import Any

from teal.agents import Policy

WORKERS = 2
HEADER, DESK, SLOTS, SLOT = 4096, 4096 + 384, 4, 64
READY, COMMITTED = 1, 3
CHANCE = random.Random(11)


class Plain(Policy):
    """First come, first served; ``lie`` is called before each pick."""

    desk: mmap.mmap | None = None

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def runnable(self, request: Any) -> None:
        self.waiting.append(request)

    def departed(self, request: Any) -> None:
        if request in self.waiting:
            self.waiting.remove(request)

    def pick(self, worker: Any) -> Any:
        if self.desk is None:
            self.desk = _desk()
        self.lie(self.desk)
        mine = next((request for request in self.waiting if request.worker in (None, worker.index)), None)
        if mine is not None:
            self.waiting.remove(mine)
        return mine

    def lie(self, desk: mmap.mmap) -> None:
        raise NotImplementedError

    def dump(self) -> str:
        return f"{len(self.waiting)} wait"


class Floods(Plain):
    """Fills all slots of all workers with decisions about what there is not, again and again, and rings all bells."""

    def lie(self, desk: mmap.mmap) -> None:
        for _ in range(100):
            for worker in range(WORKERS):
                at = _worker(worker)
                desk[at : at + 4] = CHANCE.randbytes(4)
                for slot in range(SLOTS):
                    _refill(desk, at + 64 + slot * SLOT)


class RepeatsItself(Plain):
    """Sets what was carried out ready once more, with the serial that comes next there: each decision, many times."""

    def lie(self, desk: mmap.mmap) -> None:
        for worker in range(WORKERS):
            for slot in range(SLOTS):
                at = _worker(worker) + 64 + slot * SLOT
                (word,) = struct.unpack_from("<Q", desk, at)
                if word >> 32 & 0xFF == COMMITTED:
                    struct.pack_into("<Q", desk, at, (word & 0xFFFFFFFF) + SLOTS | READY << 32)


class ForgesAsks(Plain):
    """Wants everything to leave its worker, all the time: what runs, what may run, and what there is not."""

    def preempt(self, worker: Any) -> bool:
        if self.desk is not None:
            self.lie(self.desk)
        return True

    def lie(self, desk: mmap.mmap) -> None:
        for worker in range(WORKERS):
            asked = CHANCE.randrange(64) | CHANCE.randrange(1, 200) << 32
            struct.pack_into("<Q", desk, _worker(worker) + 8, asked)


def _worker(index: int) -> int:
    """Where the desk of a worker begins: bell, preempt, then its slots."""
    return DESK + index * SLOT * (1 + SLOTS)


def _refill(desk: mmap.mmap, at: int) -> None:
    """A decision of the right form, about anything."""
    (word,) = struct.unpack_from("<Q", desk, at)
    if word >> 32 & 0xFF != COMMITTED:
        return
    (version,) = struct.unpack_from("<I", desk, HEADER + 4)
    record, generation = CHANCE.randrange(1024), CHANCE.randrange(1, 100)
    struct.pack_into("<IIIIIHBB", desk, at + 8, record, generation, CHANCE.randrange(8), 0, 0, version, 0, 0)
    struct.pack_into("<IIQQiI", desk, at + 32, 0, 0, 0, 0, 0, 0)
    struct.pack_into("<Q", desk, at, (word & 0xFFFFFFFF) + SLOTS | READY << 32)


def _desk() -> mmap.mmap:
    """The one region here that can be written."""
    for fd in range(3, 64):
        try:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
                return mmap.mmap(fd, os.lseek(fd, 0, os.SEEK_END))
        except (OSError, ValueError):
            continue
    raise LookupError("no desk among the descriptors")
