"""`teal bench duck`: the promises, and the parts in their order.

Clients have the first core, ducks and their boxes the second. A part that fails says so in a row and leaves its bars
unjudged; nothing is filled in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from teal.bench import machine
from teal.bench.lanes import LaneError, rival_environment
from teal.bench.report import Report
from teal.errors import TealError

from . import calls, idle, inputs, judging, places, remote, story
from .stage import FULL, QUICK, Stage

_MODULES: dict[str, ModuleType] = {
    "calls": calls,
    "remote": remote,
    "inputs": inputs,
    "loading": places,
    "judging": judging,
    "story": story,
    "idle": idle,
}
PARTS = tuple(_MODULES)
PROMISES = {bar: promise for module in _MODULES.values() for bar, promise in module.PROMISES.items()}


def measure(
    *,
    quick: bool = False,
    parts: Sequence[str] = PARTS,
    venv: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Everything, or some parts. venv: the rivals' environment.

    Raises RuntimeError with one core, ValueError for a part there is not, LaneError for an environment that is none.
    """
    if unknown := [part for part in parts if part not in PARTS]:
        raise ValueError(f"{', '.join(unknown)}: no such part; there are {', '.join(PARTS)}")
    plan, cores = QUICK if quick else FULL, machine.two_cores()
    report = Report("duck", PROMISES, versions=machine.own_versions())
    report.settings = {"quick": quick, "plan": vars(plan)}
    start = time.monotonic()
    report.machine = machine.describe(cores, plan.jitter_seconds)
    with Stage(report, cores, plan, rival_environment(venv), progress) as stage:
        for part in PARTS:
            if part in parts:
                _run(stage, part)
    report.judge_rest("this part did not run" if set(parts) != set(PARTS) else "not measured")
    report.settings["seconds"] = round(time.monotonic() - start, 1)
    return report


def _run(stage: Stage, part: str) -> None:
    stage.part = part
    stage.say("")
    module = _MODULES[part]
    try:
        module.measure(stage)
    except (LaneError, TealError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        stage.report.absent(f"{part} failed", part, str(error))
        judged = {bar.id for bar in stage.report.bars}
        for bar in module.PROMISES:
            if bar not in judged:
                stage.report.judge(bar, None, note=f"{part} failed: {reason}")
