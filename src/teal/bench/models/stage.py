"""What the parts of `teal bench models` stand on: one host, the rivals' environment, the models' files, the report.

All engines and servers get the same number of threads. Where that is all cores, nobody is bound to one: such an engine
takes both cores of two, whoever calls it, and its caller sleeps meanwhile. A model that runs in one thread is measured
as in `teal bench call`: the client has one core, whoever computes another.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from teal.bench import machine
from teal.bench.lanes import Environment, Lane, LaneError, own_environment
from teal.bench.report import Report
from teal.bench.rivals import zoo

NO_RIVALS = "not installed: run make bench-setup"


@dataclass(frozen=True)
class Plan:
    """How much is measured. A block of an entry has as many calls as fit `block_seconds`, within these limits; of a
    model and batch whose blocks would take longer than `contest_seconds` there are fewer, at least FEWEST_BLOCKS."""

    blocks: int
    block_seconds: float
    fewest: int
    most: int
    warm: int
    loads: int  # of "load each"
    error_inputs: int
    rounds: int  # of switching
    update_seconds: float
    jitter_seconds: float
    contest_seconds: float

    def calls(self, seconds: float) -> int:
        """In a block, of so many seconds each."""
        return min(self.most, max(self.fewest if seconds < SLOW else 1, round(self.block_seconds / max(seconds, 1e-6))))

    def blocks_of(self, seconds: Iterable[float]) -> int:
        """Of entries whose calls take so long."""
        block = sum(each * (self.calls(each) + self.warm) for each in seconds)
        return min(self.blocks, max(FEWEST_BLOCKS, int(self.contest_seconds / max(block, 1e-6))))


FEWEST_BLOCKS, SLOW = 3, 1.0  # s: of slower calls one is enough
FULL = Plan(10, 0.3, 2, 300, 1, 3, 200, 40, 5.0, 1.0, 150.0)
QUICK = Plan(3, 0.1, 2, 100, 1, 1, 20, 10, 1.0, 0.2, 30.0)


class Stage:
    """A context manager: leaves no process behind, and no file but those of the cache."""

    def __init__(
        self,
        report: Report,
        plan: Plan,
        rivals: Environment | None,
        cache: Path,
        *,
        subject: str = "teal",
        retune: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.report, self.plan, self.rivals, self.cache, self.subject = report, plan, rivals, cache, subject
        self.retune = retune  # also what was tuned before
        self.cores = len(os.sched_getaffinity(0))
        self.pair = machine.two_cores()
        self.own = own_environment()
        self._progress = progress
        self._part = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Starts the host. Raises LaneError where Teal does not start."""
        with self._stack:
            self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="teal-bench-"))
            own = {"subject": self.subject, "core": None, "worker_core": self.pair.worker}
            self.host = self._stack.enter_context(self.own.lane("teal.bench.models.host", own))
            self.address = str(self.host.ask("address"))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def threads(self, entry: zoo.Entry) -> int:
        """Of every engine and server, for this model."""
        return entry.threads or self.cores

    def bound(self, entry: zoo.Entry) -> bool:
        """Does everyone have a core of his own for this model?"""
        return entry.threads == 1

    def config(self, entry: zoo.Entry, batches: Sequence[int], **more: Any) -> dict[str, Any]:
        """What a contender of a model is told. core: of its client, server_core: of who computes; None: any."""
        bound = self.bound(entry)
        common = {
            "model": entry.name,
            "batches": list(batches),
            "threads": self.threads(entry),
            "cache": str(self.cache),
            "source": str(self.cache / f"{entry.name}.onnx"),
            "folder": self.folder,
            "core": self.pair.client if bound else None,
            "server_core": self.pair.worker if bound else None,
        }
        return common | more

    def rival(self, module: str, config: dict[str, Any], stack: ExitStack, group: str, row: str) -> Lane | None:
        """Starts a rival, to be ended by the stack; where it cannot be had, adds a row that says why."""
        if self.rivals is None:
            self.report.absent(row, group, NO_RIVALS)
            return None
        self.say(f"starting {row}")
        try:
            lane = stack.enter_context(self.rivals.lane(f"rivals.{module}", config))
        except LaneError as error:
            self.report.absent(row, group, f"did not start: {error}")
            return None
        self.report.versions |= lane.versions
        return lane

    def client(self, entry: zoo.Entry, batches: Sequence[int], settings: dict[str, Any], stack: ExitStack) -> Lane:
        """A client of Teal. settings: name of a resident model -> what it was loaded with. Raises LaneError."""
        more = {"subject": self.subject, "address": self.address, "settings": settings}
        lane = stack.enter_context(
            self.own.lane("teal.bench.models.client", self.config(entry, batches) | more),
        )
        lane.served_by = self.host
        return lane

    def part(self, name: str, bars: Sequence[str], measure: Callable[[Stage], None]) -> None:
        """Runs one part; where it fails, says so in a row and in those of its bars that it had not judged."""
        self._part = name
        self.say("")
        try:
            measure(self)
        except LaneError as error:
            self.report.absent(f"{name} failed", name, str(error))
            judged = {bar.id for bar in self.report.bars}
            for bar in bars:
                if bar not in judged:
                    self.report.judge(bar, None, note=f"{name} failed: {error}")

    def say(self, what: str) -> None:
        if self._progress is not None:
            self._progress(f"{self._part} {what}".strip())
