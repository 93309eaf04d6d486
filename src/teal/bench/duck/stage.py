"""What the parts of `teal bench duck` stand on: cores, programs, ducks, the rivals' environment, the report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from teal.bench.ground import NOT_INSTALLED
from teal.bench.lanes import Entry, Environment, Lane, LaneError, Times, own_environment, take_turns
from teal.bench.machine import Cores
from teal.bench.report import Report
from teal.duck import cc


@dataclass(frozen=True)
class Plan:
    """How much is measured. Counts of calls are per block."""

    blocks: int
    fast: int  # calls of up to ten microseconds
    slow: int  # others
    warm: int
    large: int  # of what takes milliseconds, in all
    weights: int  # bytes of an input buffer that fits no cache
    quiet_seconds: float
    jitter_seconds: float


FULL = Plan(40, 500, 60, 60, 30, 512 << 20, 5.0, 1.0)
QUICK = Plan(10, 300, 40, 40, 8, 256 << 20, 2.0, 0.5)


class Stage:
    """A context manager: leaves no process and no file behind."""

    def __init__(
        self,
        report: Report,
        cores: Cores,
        plan: Plan,
        rivals: Environment | None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.report, self.cores, self.plan, self.rivals = report, cores, plan, rivals
        self.own = own_environment()
        self.part = ""
        self._progress = progress
        self._stack = ExitStack()
        self._ducks: dict[tuple[int | None, str], Lane] = {}

    def __enter__(self) -> Self:
        """Compiles the programs. Raises NotFound without a C compiler."""
        with self._stack:
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="teal-bench-")))
            self.programs = {
                "echo": self.compiled("echo.c"),
                "gemv": self.compiled("gemv.c"),
                "nothing": self.compiled("nothing.c", abi="linux"),
                "bare": self.compiled("bare.c", "", "-nostdlib", abi="linux"),
            }
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def compiled(self, source: str, name: str = "", *flags: str, abi: str = "teal") -> str:
        """One of the programs beside this file; its path. Raises NotFound, InvalidArgument."""
        path = self.folder / (name or Path(source).with_suffix(".elf").name)
        cc.compile_program([Path(__file__).parent / source], path, abi=abi, level="3", flags=flags)
        return str(path)

    def ducks(self, core: int | None, host: str = "127.0.0.1") -> Lane:
        """The lane of the ducks that are bound to a core, or to none; started once. Raises LaneError."""
        if (core, host) not in self._ducks:
            lane = self._stack.enter_context(self.own.lane("teal.bench.duck.server", {"core": core, "host": host}))
            self._ducks[core, host] = lane
        return self._ducks[core, host]

    def client(self, ducks: Lane, stack: ExitStack, core: int | None = -1, **more: Any) -> Lane:
        """A client of these ducks, on the clients' core unless said otherwise. Raises LaneError."""
        config = {"core": self.cores.client if core == -1 else core, "programs": self.programs} | more
        lane = stack.enter_context(
            self.own.lane("teal.bench.duck.client", config | {"addresses": ducks.ask("addresses")})
        )
        lane.served_by = ducks
        return lane

    def rival(self, module: str, stack: ExitStack, row: str, group: str) -> Lane | None:
        """Starts a rival, to be ended by the stack; where it cannot be had, adds a row that says why."""
        if self.rivals is None:
            self.report.absent(row, group, NOT_INSTALLED)
            return None
        config = {"core": self.cores.client, "server_core": self.cores.worker, "folder": str(self.folder)}
        try:
            lane = stack.enter_context(self.rivals.lane(f"rivals.{module}", config))
        except LaneError as error:
            self.report.absent(row, group, f"did not start: {error}")
            return None
        self.report.versions |= lane.versions
        return lane

    def say(self, what: str) -> None:
        if self._progress is not None:
            self._progress(f"{self.part} {what}".strip())

    def turns(self, entries: Sequence[Entry], blocks: int | None = None) -> dict[str, Times]:
        """Blocks of all entries in turn. Raises LaneError."""
        return take_turns(entries, blocks or self.plan.blocks, self.say)
