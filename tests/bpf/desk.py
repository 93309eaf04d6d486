"""The desk of probe.bpf.c: a request driven step by step from Python, each step in the kernel."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
import time
from pathlib import Path

import numpy as np

from teal import bpf

PROBE = Path(__file__).with_name("probe.bpf.c")
CLOSED, FULL, STALE, PENDING, DONE, FAILED, CANCELLED, EXPIRED = -1, -2, -3, 0, 4, 5, 6, 7
_TABLE = 64
_HEAD = struct.Struct("=QQQqiIIIQQQ")
_GETPPID = {"x86_64": 110, "aarch64": 173}


class Desk:
    """Sends and looks; ``programs`` are loaded from an object that was compiled once for all tests."""

    def __init__(self, program: Path, session: bpf.Session) -> None:
        self.programs = bpf.Programs(program, session)

    def close(self) -> None:
        self.programs.close()

    def _head(self) -> list[int]:
        return list(_HEAD.unpack_from(self.programs.read("desk")))

    def _set(self, **fields: int) -> None:
        names = ("handle", "deadline_in", "out", "given", "result", "process", "syscall", "rounds")
        raw = bytearray(self.programs.read("desk"))
        values = list(_HEAD.unpack_from(raw))
        for name, value in fields.items():
            values[names.index(name)] = value
        _HEAD.pack_into(raw, 0, *values)
        self.programs.write("desk", bytes(raw))

    def send(self, given: int | float = 0, deadline: float = 0) -> int:
        """The handle, or the result of take() (negative). A float is given as two float32 of half its size."""
        if isinstance(given, float):
            given = int(np.array([given / 2, given / 2], np.float32).view(np.int64)[0])
        self._set(given=given, deadline_in=int(deadline * 1e9))
        self.programs.run("send_one")
        handle, *_ = self._head()
        return handle or self._head()[4]

    def step(self, name: str, handle: int = 0, rounds: int = 0) -> int:
        """Runs one of the programs: its result."""
        self._set(handle=handle, rounds=rounds)
        self.programs.run(name)
        return self._head()[4]

    def finish(self, handle: int, seconds: float = 20) -> tuple[int, int]:
        """(result, first eight bytes of the answer) once the request has ended; the slot is free then."""
        until = time.monotonic() + seconds
        while (result := self.step("finish_one", handle, 1000)) == PENDING and time.monotonic() < until:
            time.sleep(0.001)
        return result, self._head()[2]

    def sum(self, value: float) -> float:
        """What builtin:sum answers, in the kernel."""
        result, out = self.finish(self.send(value))
        assert result == DONE, result
        return struct.unpack("=d", struct.pack("=Q", out))[0]

    def events(self, threads: int, each: int) -> tuple[int, int, int]:
        """Right, wrong and refused answers after that many events, on all CPUs at once."""
        floats = np.arange(_TABLE, dtype=np.float32)
        table = bytes(12 * _TABLE) + floats.tobytes() + (floats.astype(np.float64) * 2).tobytes()
        head = _HEAD.pack(0, 0, 0, 0, 0, os.getpid(), _GETPPID[platform.machine()], 0, 0, 0, 0)
        self.programs.write("desk", head + table)
        self.programs.attach("on_event")
        getppid = ctypes.CDLL(None).getppid

        def call() -> None:
            for _ in range(each):
                getppid()

        crowd = [threading.Thread(target=call) for _ in range(threads)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join()
        self.programs.detach()
        until = time.monotonic() + 20
        while self.step("sweep") != 0 and time.monotonic() < until:
            time.sleep(0.001)
        right, wrong, refused = self._head()[8:]
        return right, wrong, refused
