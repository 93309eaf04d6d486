"""Rows: Teal, called from another process: each engine, the tuned model, and each half of Teal taken away.

What a load cannot have here (an engine that is not installed, a precision that this Teal does not know) is a row that
says so. The tuned model is what `teal tune` keeps beside the file; its error is measured after the contest on many
inputs against the model at float32.
"""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from teal.bench import lanes
from teal.bench.lanes import Lane, LaneError
from teal.bench.report import Row
from teal.errors import TealError
from teal.tune import record
from teal.tune.search import Question, Search

from .entrant import CLOSE, SAME, Contest, Entrant, Tuned
from .promises import MAX_ERROR
from .stage import Stage

SAMPLES, SAMPLE_SEED = 16, 5000  # inputs on which settings are compared while tuning

LOADED = {  # resident name -> row, settings of the load
    "onnx": ("onnxruntime fp32", {"kernel": "onnx", "tuned": False}),
    "openvino": ("OpenVINO fp32", {"kernel": "openvino", "precision": "fp32", "tuned": False}),
    "bf16": ("OpenVINO bf16", {"kernel": "openvino", "precision": "bf16", "tuned": False}),
    "tuned": ("tuned", {}),
}
TUNED = "Teal tuned, written"
OFF = {"messages": "Teal tuned, shared memory off", "load each": "Teal tuned, residency off"}


def in_place(name: str) -> str:
    """The row of a prepared call."""
    return f"Teal {LOADED[name][0]}, in place"


def written(name: str) -> str:
    """The row of a call that writes its input into shared memory."""
    return f"Teal {LOADED[name][0]}, written"


def entrants(stage: Stage, contest: Contest, stack: ExitStack) -> list[Entrant]:
    """Loads the model in every way and starts one client for all of them."""
    settings = loaded(stage, contest)
    if not settings:
        return []
    client = stage.client(contest.entry, [contest.batch], settings, stack)
    found = []
    for name in settings:
        tolerance = SAME if name in ("onnx", "openvino") else CLOSE
        said = contest.tuned.said if name == "tuned" and contest.tuned is not None else client.note
        found += [
            Entrant(row, client, f"{name} {way} b{contest.batch}", said, tolerance)
            for row, way in ((in_place(name), "in place"), (written(name), "written"))
        ]
    if "tuned" in settings:
        variant = f"tuned messages b{contest.batch}"
        found.append(Entrant(OFF["messages"], client, variant, "input and answer through a UNIX socket", CLOSE))
    return found


def loaded(stage: Stage, contest: Contest) -> dict[str, dict[str, Any]]:
    """What could be loaded: name -> settings."""
    found = {}
    source = str(stage.cache / f"{contest.entry.name}.onnx")
    for name, (row, settings) in LOADED.items():
        stage.say(f"loading {row}")
        if name != "tuned":
            settings = settings | {"threads": stage.threads(contest.entry)}
        elif (reason := tune(stage, contest, Path(source))) is not None:
            stage.report.absent(TUNED, contest.group, reason)
            continue
        if stage.bound(contest.entry):
            settings = settings | {"pool": "bound"}
        try:
            said = stage.host.ask("load", name=name, source=source, **settings)
        except LaneError as error:
            stage.report.absent(f"Teal {row}", contest.group, str(error))
            continue
        if name == "tuned":
            contest.tuned = Tuned(said["note"] or f"{said['kernel']}, {said['precision'] or 'fp32'}")
        found[name] = settings
    return found


def tune(stage: Stage, contest: Contest, source: Path) -> str | None:
    """Tunes the model unless that was done; why it could not be, or None.

    On inputs like those of the bench, but others. int8 is tried where weights are real: random ones have no ranges
    that mean anything.
    """
    with contextlib.suppress(record.Unusable):
        if not stage.retune and (known := record.found(source)) is not None and known[0].kind == "given":
            return None
    stage.say("tuning")
    samples = Path(stage.folder) / "samples.npz"
    np.savez(samples, **contest.entry.inputs(SAMPLES, SAMPLE_SEED))
    question = Question(source, max_error=MAX_ERROR, inputs=samples, int8=bool(contest.entry.real))
    question.threads = [contest.entry.threads] if contest.entry.threads else []
    try:
        found = Search(question, lambda what: stage.say(f"tuning: {what}")).run()
    except TealError as error:
        return f"tuning failed: {error}"
    finally:
        samples.unlink()
    for trial in found.trials:
        us = trial.us.get(1)
        said = f"{trial.candidate.words}, {trial.candidate.threads} threads"
        note = trial.failed or f"error {trial.error:.1e} on {found.inputs} inputs"
        stage.report.rows.append(Row(f"tune: {said}", contest.group, 0 if us is None else 1, us, note=note))
    return None if found.winner is not None else f"nothing was within an error of {MAX_ERROR}"


def after(stage: Stage, contest: Contest, all_entrants: list[Entrant]) -> None:
    """Rows outside of the turns: a load for each call; and the error of the tuned model."""
    client: Lane | None = next((each.lane for each in all_entrants if each.row == in_place("tuned")), None)
    if client is None or contest.tuned is None:
        return
    stage.say("loading for each call")
    row = OFF["load each"]
    entry = lanes.Entry(row, client, f"tuned load each b{contest.batch}", 1, 0)
    times = lanes.take_turns([entry], stage.plan.loads)[row]
    stage.report.add_times(row, contest.group, times, "loaded, called once, unloaded")
    contest.times[row] = times
    if contest.batch == 1 and "onnx" in LOADED:
        stage.say("measuring the error")
        found = client.ask("error", name="tuned", reference="onnx", n=stage.plan.error_inputs)
        contest.tuned = Tuned(contest.tuned.said, found["error"], found["agreement"], found["inputs"])
