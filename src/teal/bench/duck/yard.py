"""A yard of the bench's own, for what is measured below Python's clients."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from teal import _core
from teal.duck.yards import box_program

_ORDER = {
    "args_bytes": 4096,
    "ob_bytes": 1 << 20,
    "log_bytes": 0,
    "memory_bytes": 64 << 20,
    "idle_ns": 10_000_000,
    "start_limit_ns": 10_000_000_000,
    "call_limit_ns": 10_000_000_000,
}


class Yard:
    """One program, and boxes with it. A context manager."""

    def __init__(self, path: str) -> None:
        self._yard = _core.DuckYard(box_program("process"), 1)
        self._sealed: _core.DuckYard | None = None
        with open(path, "rb") as opened:
            self._program = _core.DuckProgram(opened.fileno(), os.path.getsize(path), Path(path).name)

    def open(self, *, pin: int | None = None) -> _core.DuckBox:
        """A session, on one core of its own if `pin` says which. Raises as DuckYard.open."""
        return self._yard.open(self._program, _ORDER | {"cores": 1, "pin": [] if pin is None else [pin]})

    def direct_times(self, calls: int, nbytes: int, client: int, box: int, **place: str) -> _core.DuckDirectTimes:
        """Direct calls beside a bare echo, on these two cores; sealed ones too, where boxes can have libcrypto.

        place: near, far, host, where they are not both here.
        """
        if self._sealed is None:
            self._sealed = _core.DuckYard(box_program("sealed"), 1)
        sealed = None if self._sealed.refuses_direct(True) else self._sealed
        return _core.measure_duck_direct(self._yard, sealed, self._program, calls, nbytes, client, box, **place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._yard.close()
        if self._sealed is not None:
            self._sealed.close()
