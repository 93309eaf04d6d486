"""Loading and judging programs: into places, and from zero beside a process of the operating system."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

from teal import _core
from teal.bench.lanes import Times, paired_ratio
from teal.bench.report import Promise
from teal.duck.yards import box_program

from . import places
from .stage import Stage

PROMISES = {
    "duck.load.first_us": Promise(300, "lower", "µs"),
    "duck.load.again_us": Promise(10, "lower", "µs"),
    "duck.load.delta_pages": Promise(2, "lower", "pages"),
    "duck.judge.vs_vfork_exec": Promise(1.5, "lower", "×"),  # noqa: RUF001
}
PAUSE_NS = 3_000_000  # a spare box is made in less


def measure(stage: Stage) -> None:
    """Places first, then runs: paced, so that a spare box is ready, and one after the other."""
    places.measure(stage)
    file, group = stage.programs["nothing"], "judged runs"
    yard = _core.DuckYard(box_program(), 0, 2)
    try:
        with open(file, "rb") as opened:
            program = _core.DuckProgram(opened.fileno(), os.path.getsize(file), Path(file).name)
        for name, pause in (("paced", PAUSE_NS), ("one after the other", 0)):
            judged, spawned = Times(), Times()
            for block in range(stage.plan.blocks):
                stage.say(f"judging, {name}, block {block + 1} of {stage.plan.blocks}")
                ours, theirs, _ = _core.measure_box_runs(yard, program, file, -1, 20, pause)
                judged.blocks.append(array("q", ours))
                spawned.blocks.append(array("q", theirs))
            stage.report.add(
                f"judged run, {name}", group, judged.all(), "main() { return 0; }, static, with its record"
            )
            stage.report.add(
                f"vfork + execve + wait, {name}", group, spawned.all(), "the same file, no sandbox, no record"
            )
            ratio = paired_ratio(judged, spawned)
            if pause:
                note = "a spare box was ready"
                stage.report.judge("duck.judge.vs_vfork_exec", ratio.value, se=ratio.se, note=note)
    finally:
        yard.close()
