"""Programs inside the duck's own process: no sandbox, for tests and for programs that are trusted like one's own code.

Theory of operation: ``InlineYard`` has the methods of a yard, and core/box/inline.hpp does the work. One program at a
time, on one core. A program that crashes or exits takes the duck with it; one that loops can be left, not ended.
"""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from teal import _core
from teal.errors import InvalidArgument

_WHY = "it is in the duck's own process"


class InlineYard:
    """Stands where a _core.DuckYard does. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()  # guards what is below
        self._opened = 0
        self._boxes: list[_core.DuckBox] = []

    def open(
        self, program: _core.DuckProgram, order: dict[str, Any], direct: _core.DuckOffer | None = None
    ) -> _core.DuckBox:
        """Raises Busy (another one runs), InvalidArgument (cores, addresses), KernelFailed, DeadlineExceeded."""
        if direct is not None:
            raise InvalidArgument(f"direct calls of an inline program: {_WHY}")
        box = _core.open_inline(program, order)
        with self._guard:
            self._opened += 1
            self._boxes = [one for one in self._boxes if one.ending[0] == 0] + [box]
        return box

    def judge(self, program: _core.DuckProgram, run: dict[str, Any]) -> NoReturn:
        """A judged run begins from zero in a process of its own. Raises InvalidArgument."""
        raise InvalidArgument("a judged run needs a sandbox: process or kvm", path="$.sandbox")

    judge_duckinfo = judge

    def refuses_direct(self, sealed: bool) -> str:
        """Why there are no direct calls."""
        return _WHY

    def report(self) -> list[tuple[str, bool, str]]:
        """What confines programs: nothing."""
        return [("sandbox", False, "none: programs run inside the duck's own process, with all of its rights")]

    def statistics(self) -> dict[str, int]:
        """Counters."""
        with self._guard:
            now = sum(one.ending[0] == 0 for one in self._boxes)
            return {"sessions_open": now, "sessions_opened": self._opened}

    @property
    def zygote_pid(self) -> int:
        """There is none."""
        return 0

    def close(self) -> None:
        """Ends what runs."""
        with self._guard:
            boxes, self._boxes = self._boxes, []
        for box in boxes:
            box.kill()
