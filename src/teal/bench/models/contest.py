"""One model at one batch: everyone who runs it, in turns; rows, and what the bars are made of.

Theory of operation. Each group of rows (`standard`, `engines`, `resident`) names its entrants: a row, the lane
that runs it, the variant. Every entrant first answers the common input and is compared with the first one (an
answer that is wrong is a failure and not a fast row); that call also tells how long one takes, from which the calls of
a block follow. Then `take_turns` runs the blocks, so that all comparisons are between neighbours in time.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np

from teal.bench.lanes import Entry, LaneError, take_turns
from teal.bench.rivals import zoo

from . import cache, engines, resident, standard
from .entrant import Contest, Entrant
from .stage import Stage

# onnxruntime's threads spin on for tens of milliseconds after a run, by default: an EfficientNet of 4 ms measured right
# after another process's took 5.5.
SETTLE_S = 0.06


def run(stage: Stage, entry: zoo.Entry, batch: int, *, compiled: bool) -> Contest:
    """Raises LaneError where the model cannot be had or nobody runs it."""
    contest = Contest(entry, batch)
    if stage.rivals is None and not (stage.cache / f"{entry.name}.onnx").exists():
        raise LaneError("its file is made with torch, in the rivals' environment: run make bench-setup")
    if stage.rivals is not None:
        stage.say("making the model")
        cache.prepare(entry, stage.cache, stage.rivals)
    with ExitStack() as stack:
        entrants = [
            *engines.entrants(stage, contest, stack),
            *standard.entrants(stage, contest, stack, compiled=compiled),
            *resident.entrants(stage, contest, stack),
        ]
        seconds = checked(stage, contest, entrants)
        entries = [each for each in entrants if each.row in seconds]
        if not entries:
            raise LaneError("nobody runs it")
        turns = [turn(stage, each, seconds[each.row]) for each in entries]
        blocks = stage.plan.blocks_of(seconds.values())
        contest.times = take_turns(turns, blocks, stage.say, SETTLE_S)
        for each in entries:
            stage.report.add_times(each.row, contest.group, contest.times[each.row], each.note)
        resident.after(stage, contest, entrants)
    stage.host.ask("unload_all")
    return contest


def turn(stage: Stage, each: Entrant, seconds: float) -> Entry:
    return Entry(each.row, each.lane, each.variant, stage.plan.calls(seconds), stage.plan.warm)


def checked(stage: Stage, contest: Contest, entrants: list[Entrant]) -> dict[str, float]:
    """Has everyone answer the common input twice; rows with a right answer, and the seconds of the second one."""
    truth: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None = None
    found = {}
    for each in entrants:
        stage.say(f"first answer of {each.row}")
        try:
            each.lane.answer(each.variant)
            start = time.perf_counter()
            data = each.lane.answer(each.variant)
            taken = time.perf_counter() - start
        except LaneError as error:
            stage.report.absent(each.row, contest.group, str(error))
            continue
        answer = np.frombuffer(data or b"", np.float32)
        if truth is None:
            truth = answer
        if answer.size != truth.size or not (far := relative(answer, truth)) <= each.tolerance:
            what = f"{answer.size} values" if answer.size != truth.size else f"relative error {far:.2g}"
            stage.report.absent(each.row, contest.group, f"a wrong answer: {what} beside {entrants[0].row}")
            continue
        found[each.row] = taken
    return found


def relative(answer: np.ndarray, truth: np.ndarray) -> float:
    """L2 of the difference over L2 of the truth."""
    return float(np.linalg.norm(answer - truth) / max(float(np.linalg.norm(truth)), 1e-30))
