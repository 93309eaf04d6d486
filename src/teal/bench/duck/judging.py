"""Judged runs, each from zero, beside vfork + execve + wait of the same file.

Theory of operation: what is timed is what both have to do for a result. One at a time: from the order until the record
(the status) is there. A yard has a box ready by then, and buries it afterwards; the operating system does neither. So
there is a series too: so many runs one after the other, until the last box is gone and the next one is ready, nothing
left out and nothing left over. The promise is about the worse of the two. Both ways of both programs take turns.
"""

from __future__ import annotations

import os
import statistics
from array import array
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from teal import _core
from teal.bench.lanes import Times, estimate, paired_ratio
from teal.bench.report import Promise
from teal.duck.yards import box_program

if TYPE_CHECKING:
    from .stage import Stage

PROMISES = {"duck.judge.vs_vfork_exec": Promise(1.5, "lower", "×")}  # noqa: RUF001
SERIES = 200
PAUSE_NS = 3_000_000  # a spare box is made in less
_GROUP = "judged runs"


@dataclass
class Runs:
    """Of one program: ns."""

    judged: Times = field(default_factory=Times)  # one at a time
    spawned: Times = field(default_factory=Times)
    judged_series: list[int] = field(default_factory=list)  # each run of a series, all costs shared out
    spawned_series: list[int] = field(default_factory=list)
    recorded: list[int] = field(default_factory=list)  # what the records say, of one series

    def series_ratio(self) -> list[float]:
        return [a / b for a, b in zip(self.judged_series, self.spawned_series, strict=True)]


def measure(stage: Stage) -> None:
    """Rows of both programs; the bar is about the one with a libc."""
    with closing(_core.DuckYard(box_program("process"), 0, 2)) as yard:
        for name, what in (("nothing", "main() { return 0; }"), ("bare", "no libc")):
            runs = _measured(stage, yard, stage.programs[name])
            _rows(stage, runs, what)
            if name == "nothing":
                _judge(stage, runs)


def _measured(stage: Stage, yard: _core.DuckYard, file: str) -> Runs:
    with open(file, "rb") as opened:
        program = _core.DuckProgram(opened.fileno(), os.path.getsize(file), Path(file).name)
    runs = Runs()
    for block in range(stage.plan.blocks):
        stage.say(f"judging {Path(file).stem}, block {block + 1} of {stage.plan.blocks}")
        ours, theirs, _ = _core.measure_box_runs(yard, program, file, -1, 20, PAUSE_NS)
        runs.judged.blocks.append(array("q", ours))
        runs.spawned.blocks.append(array("q", theirs))
        judged, spawned, runs.recorded = _core.measure_box_series(yard, program, file, -1, SERIES)
        runs.judged_series.append(judged // SERIES)
        runs.spawned_series.append(spawned // SERIES)
    return runs


def _rows(stage: Stage, runs: Runs, what: str) -> None:
    report, spawn = stage.report, "vfork + execve + wait"
    alone = "one at a time, a box ready, until its record is there"
    report.add(f"judged run, {what}", _GROUP, runs.judged.all(), alone)
    report.add(f"{spawn}, {what}", _GROUP, runs.spawned.all(), "no sandbox, no record")
    all_of_it = f"a run of {SERIES} in a row, all boxes made and buried"
    report.add(f"judged series, {what}", _GROUP, runs.judged_series, all_of_it)
    report.add(f"{spawn}, series, {what}", _GROUP, runs.spawned_series, f"a run of {SERIES} in a row")
    mean, deviation = statistics.fmean(runs.recorded) / 1e3, statistics.pstdev(runs.recorded) / 1e3
    spread = f"the same program {SERIES} times: mean {mean:.1f} µs, standard deviation {deviation:.1f} µs"
    report.add(f"CPU time in the record, {what}", _GROUP, runs.recorded, spread)


def _judge(stage: Stage, runs: Runs) -> None:
    one, series = paired_ratio(runs.judged, runs.spawned), estimate(runs.series_ratio())
    worse = max(one, series, key=lambda ratio: ratio.value)
    note = f"one at a time {one.value:.2f}, in a series of {SERIES} {series.value:.2f}"
    stage.report.judge("duck.judge.vs_vfork_exec", worse.value, se=worse.se, note=note)
