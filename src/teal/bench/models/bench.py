"""`teal bench models`: ordinary models from another process, beside what people serve them with and the best engines.

The parts, in this order: a contest for every model and batch (`contest.py`), switching, hot updates, and what other
features promise (pipelines, starts, torch.compile). A contest that was finished is written into the cache folder as
it ends; `resume` takes those of an interrupted run, if everything they depend on is the same and they are a few hours
old at most, and says so in their rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from teal.bench import machine
from teal.bench.lanes import LaneError, rival_environment
from teal.bench.report import Report
from teal.bench.rivals import zoo

from . import compiled as torch_backend
from . import contest, judging, kept, pipeline, starts, switching, updating
from .cache import default_folder
from .entrant import Contest
from .promises import PROMISES
from .stage import FULL, QUICK, Stage


def measure(
    *,
    models: Sequence[str] = (),
    batches: Sequence[int] = (1,),
    quick: bool = False,
    compiled: bool = True,
    resume: bool = False,
    retune: bool = False,
    venv: Path | None = None,
    cache: Path | None = None,
    subject: str = "teal",
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Runs the bench and returns its report.

    models: names of `zoo.ZOO`, default all. compiled: with torch.compile, whose first call takes up to minutes.
    retune: also models that were tuned before. venv: the rivals' environment; cache: folder of the models' files;
    subject: the module that is Teal.
    Raises LaneError where Teal does not start.
    """
    plan = QUICK if quick else FULL
    entries = [entry for entry in zoo.ENTRIES if not models or entry.name in models]
    report = Report("models", PROMISES, versions=machine.own_versions())
    report.settings = {
        "quick": quick,
        "plan": vars(plan),
        "models": [e.name for e in entries],
        "batches": list(batches),
    }
    start = time.monotonic()
    report.machine = machine.describe(machine.two_cores(), plan.jitter_seconds)
    folder = cache or default_folder()
    contests: list[Contest] = []
    rivals = rival_environment(venv)
    with Stage(report, plan, rivals, folder, subject=subject, retune=retune, progress=progress) as stage:
        for number, entry in enumerate(entries):
            for batch in batches:
                name = f"{entry.title}, batch {batch} ({number + 1} of {len(entries)})"

                def one(stage: Stage, entry: zoo.Entry = entry, batch: int = batch) -> None:
                    contests.append(held(stage, entry, batch, compiled=compiled, resume=resume))

                stage.part(name, (), one)
        judging.judge(report, contests)
        stage.part("switching", (switching.BAR,), switching.measure)
        stage.part("updates", updating.BARS, updating.measure)
        stage.part("pipeline", (pipeline.BAR,), pipeline.measure)
        stage.part("starts", (starts.BAR,), starts.measure)
        starts.judge_hot(stage, contests)
        stage.part("torch.compile", (torch_backend.BAR,), torch_backend.measure)
    report.judge_rest("not measured: no contest had what it compares")
    report.settings["seconds"] = round(time.monotonic() - start, 1)
    return report


def held(stage: Stage, entry: zoo.Entry, batch: int, *, compiled: bool, resume: bool) -> Contest:
    """A contest, held now or taken from an interrupted run. Raises LaneError."""
    key = kept.key(stage, entry, batch, compiled=compiled)
    if resume and (found := kept.read(stage, key)) is not None:
        return found
    before = len(stage.report.rows)
    try:
        held = contest.run(stage, entry, batch, compiled=compiled)
    except LaneError:
        stage.host.ask("unload_all")
        raise
    kept.write(stage, key, held, stage.report.rows[before:])
    return held
