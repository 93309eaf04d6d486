"""What the parts of a bench stand on: the host under measurement, its cores, the rivals' environment, the report.

One host lives through the whole bench, as a process of its own. Each part starts the lanes that it needs and ends them
when it is done, so a contender that dies takes no other part's figures with it: the part is reported as failed, with
what the contender said, and its bars are left unjudged.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import models
from .lanes import Entry, Environment, Lane, LaneError, Times, own_environment, take_turns
from .machine import Cores
from .report import Report

TOLERANCE = 1e-4  # between answers of one model from the same engine in different processes
NOT_INSTALLED = "not installed: run make bench-setup"


@dataclass(frozen=True)
class Plan:
    """How much a bench measures. Counts of calls are per block; every block starts with untimed calls (warm)."""

    blocks: int
    fast: int  # calls of a few microseconds
    slow: int  # calls of tens of microseconds and more
    warm: int
    rounds: int  # of the large model, each with sessions made anew
    turns: int  # blocks in a round
    large: int  # calls of the large model in a block
    attaches: int
    copies: int
    quiet_seconds: float
    reloads: int
    settle_reloads: int
    jitter_seconds: float


FULL = Plan(
    blocks=40,
    fast=500,
    slow=60,
    warm=60,
    rounds=12,
    turns=8,
    large=4,
    attaches=30,
    copies=500,
    quiet_seconds=5.0,
    reloads=1000,
    settle_reloads=50,
    jitter_seconds=1.0,
)
QUICK = Plan(
    blocks=10,
    fast=300,
    slow=40,
    warm=40,
    rounds=2,
    turns=6,
    large=4,
    attaches=20,
    copies=100,
    quiet_seconds=2.0,
    reloads=100,
    settle_reloads=20,
    jitter_seconds=0.5,
)


class Ground:
    """The host, and what is needed to put lanes beside it. A context manager: leaves no process and no file behind."""

    def __init__(
        self,
        report: Report,
        cores: Cores,
        plan: Plan,
        rivals: Environment | None,
        *,
        subject: str = "teal",
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.report = report
        self.cores = cores
        self.plan = plan
        self.rivals = rivals
        self.subject = subject
        self.own = own_environment()
        self._progress = progress
        self._part = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Starts the host. Raises LaneError where Teal does not start."""
        with self._stack:
            self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="teal-bench-"))
            self.host = self._stack.enter_context(self.new_host())
            self.address = str(self.host.ask("address"))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def new_host(self) -> Lane:
        """A host with a worker of its own. Raises LaneError."""
        return self.own.lane("teal.bench.host", {"subject": self.subject, "worker_core": self.cores.worker})

    def load(self, name: str, source: str | Path, host: Lane | None = None) -> None:
        (host or self.host).ask("load", name=name, source=str(source))

    def client(self, host: Lane | None = None, **more: Any) -> Lane:
        """A new client of Teal on its core; of another host than the one that is always here. Raises LaneError."""
        served_by = host or self.host
        config = {"subject": self.subject, "address": str(served_by.ask("address")), "core": self.cores.client}
        lane = self.own.lane("teal.bench.client", config | {"server_core": self.cores.worker} | more)
        lane.served_by = served_by
        return lane

    def in_process(self, environment: Environment, kinds: Mapping[str, Path]) -> Lane:
        """The engine with nothing around it, on the core where the worker and the servers run. Raises LaneError."""
        config = {"core": self.cores.worker, "models": {kind: str(path) for kind, path in kinds.items()}}
        module = "teal.bench.rivals.inprocess" if environment is self.own else "rivals.inprocess"
        return environment.lane(module, config)

    def rival(self, module: str, stack: ExitStack, row: str, group: str) -> Lane | None:
        """Starts a rival, to be ended by the stack; where it cannot be had, adds a row that says why."""
        if self.rivals is None:
            self.report.absent(row, group, NOT_INSTALLED)
            return None
        config = {
            "core": self.cores.client,
            "server_core": self.cores.worker,
            "folder": self.folder,
            "mlp": str(models.mlp()),
        }
        try:
            lane = stack.enter_context(self.rivals.lane(f"rivals.{module}", config))
        except LaneError as error:
            self.report.absent(row, group, f"did not start: {error}")
            return None
        self.report.versions |= lane.versions
        return lane

    def part(self, name: str, bars: Sequence[str], measure: Callable[[Ground], None]) -> None:
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

    def turns(self, entries: Sequence[Entry], blocks: int | None = None) -> dict[str, Times]:
        """Blocks of all entries in turn, as many as planned unless said otherwise. Raises LaneError."""
        return take_turns(entries, blocks or self.plan.blocks, self.say)

    def entry(self, row: str, lane: Lane, variant: str, n: int) -> Entry:
        return Entry(row, lane, variant, n, self.plan.warm)


def check_answers(entries: Sequence[Entry], kind: str) -> None:
    """Has every entry answer the common input once and compares with the first one that has an answer.

    kind: array type code of the answer, "f" for numbers that may differ by TOLERANCE. Raises LaneError.
    """
    truth: tuple[str, array[Any]] | None = None
    for entry in entries:
        if (data := entry.lane.answer(entry.variant)) is None:
            continue
        found = array(kind, data)
        if truth is None:
            truth = (entry.row, found)
        elif len(found) != len(truth[1]) or any(abs(a - b) > TOLERANCE for a, b in zip(found, truth[1], strict=True)):
            raise LaneError(f"{entry.row} answers {len(found)} values that differ from those of {truth[0]}")
