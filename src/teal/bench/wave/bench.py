"""`teal bench wave`: the promises, and the parts in their order.

The worker has the first core, the agent and the load the second: see driver.py. A part that fails says so in a row and
leaves its bars unjudged; nothing is filled in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from teal.bench import machine
from teal.bench.lanes import LaneError
from teal.bench.report import Report
from teal.errors import TealError

from . import ablation, costs, failing, foundation, latency, plot, saturation
from .stage import FULL, QUICK, Cores, Stage

PROMISES = (
    saturation.PROMISES | ablation.PROMISES | costs.PROMISES | latency.PROMISES | failing.PROMISES | foundation.PROMISES
)
PARTS = ("costs", "saturation", "ablation", "latency", "failing", "foundation")


def measure(
    *,
    quick: bool = False,
    parts: Sequence[str] = PARTS,
    plots: Path | None = None,
    older: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Everything, or some parts. plots: folder for the pictures; older: the environment of an older Teal.

    Raises RuntimeError with one core, ValueError for a part there is not.
    """
    if unknown := [part for part in parts if part not in PARTS]:
        raise ValueError(f"{', '.join(unknown)}: no such part; there are {', '.join(PARTS)}")
    plan, cores = QUICK if quick else FULL, machine.two_cores()
    report = Report("wave", PROMISES)
    report.machine = machine.describe(cores, plan.jitter_seconds) | {
        "worker_core": cores.client,
        "client_core": cores.worker,
    }
    report.versions = machine.own_versions() | {"rocksdict": _version("rocksdict")}
    report.settings = {
        "quick": quick,
        "worker": f"core {cores.client}",
        "load and agent": f"core {cores.worker}, one thread: a step of the load, a step of the agent",
        "latency": "from the intended arrival until the load sees the end",
    }
    with Stage(report, Cores(cores.client, cores.worker), plan, progress) as stage:
        for part in PARTS:
            if part in parts:
                _run(stage, part, plots, older)
    report.judge_rest("this part did not run" if set(parts) != set(PARTS) else "not measured")
    return report


def _run(stage: Stage, part: str, plots: Path | None, older: Path | None) -> None:
    promises, work = {
        "costs": (costs.PROMISES, partial(costs.measure, stage)),
        "saturation": (saturation.PROMISES, partial(saturation.measure, stage)),
        "ablation": (ablation.PROMISES, partial(_ablation, stage, plots)),
        "latency": (latency.PROMISES, partial(_latency, stage, plots)),
        "failing": (failing.PROMISES, partial(failing.measure, stage)),
        "foundation": (foundation.PROMISES, partial(foundation.measure, stage, older)),
    }[part]
    start = time.monotonic()
    try:
        work()
    except (LaneError, TealError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        stage.report.absent(f"{part} failed", part, str(error))
        judged = {bar.id for bar in stage.report.bars}
        for bar in promises:
            if bar not in judged:
                stage.report.judge(bar, None, note=f"{part} failed: {reason}")
    stage.report.settings[f"seconds of {part}"] = round(time.monotonic() - start, 1)


def _ablation(stage: Stage, plots: Path | None) -> None:
    found = ablation.measure(stage)
    if plots is not None:
        steps = [(step.name, step.rate) for step in (*found.added, *found.without)]
        title = "Emulated PCIe: requests/s with no trick, each one more, all but one"
        _write(plots / "wave-ablation.svg", plot.bars(title, "requests/s of nothing, one worker", steps))


def _latency(stage: Stage, plots: Path | None) -> None:
    for load, curves in latency.measure(stage).items():
        if plots is not None:
            lines = [(curve.name, curve.points) for curve in curves]
            words = ("share of what in-line FIFO serves at saturation", "p99 of short requests, µs")
            _write(plots / f"wave-{load}.svg", plot.lines(f"{load}: latency against load", *words, lines))


def _write(path: Path, picture: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(picture, encoding="utf-8")


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
