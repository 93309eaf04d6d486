"""Cold, warm and hot: how long until a model answers when its host starts, when its worker was killed, and as a rule.

cold   a new host, the model loaded, the first answer; nothing is kept on disk
again  the same, where an earlier host has left its snapshots on disk (`cache=`)
warm   the worker is killed; how long until a call is answered again, by a worker that was started then
spare  the same where a prepared worker stands by (`spares=1`)
hot    the next call: judged in the contests, where the same engine runs in-process beside it
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from teal.bench.lanes import LaneError, decode, estimate, paired_ratio
from teal.bench.rivals import zoo

from . import judging, resident
from .entrant import Contest

if TYPE_CHECKING:
    from .stage import Stage

BAR, HOT = "models.start.warm_over_cold", "models.start.hot_over_engine"
MODEL = "resnet50"
KINDS = ("cold", "again", "warm", "spare")
ROUNDS = 3
SLOW_US = 1000.0  # models from here on say something of a share of 1.03


def measure(stage: Stage) -> None:
    """Raises LaneError where the model's file or its engine is not here."""
    entry = zoo.ZOO[MODEL]
    source = stage.cache / f"{MODEL}.onnx"
    if not source.exists():
        raise LaneError(f"{entry.title}'s file was not made: run the bench with this model once")
    settings = {"kernel": "openvino", "precision": "fp32", "threads": stage.threads(entry)}
    config = stage.config(entry, [1]) | {"subject": stage.subject, "source": str(source), "settings": settings}
    with stage.own.lane("teal.bench.models.starting", config) as lane:
        found: dict[str, list[int]] = {}
        for kind in KINDS:
            stage.say(kind)
            found[kind] = list(decode(lane.ask("starts", kind=kind, rounds=ROUNDS)))
    for kind in KINDS:
        stage.report.add(f"{kind} start", f"starts, {entry.title}", found[kind], "to the first answer; OpenVINO fp32")
    ratio = estimate([warm / cold for warm, cold in zip(found["spare"], found["cold"], strict=True)])
    without = statistics.median(found["warm"]) / statistics.median(found["cold"])
    disk = statistics.median(found["again"]) / statistics.median(found["cold"])
    note = f"{entry.title}; a spare worker takes over; without one {without:.2f}; a new host after another {disk:.2f}"
    stage.report.judge(BAR, ratio.value, se=ratio.se, note=note)


def judge_hot(stage: Stage, contests: list[Contest]) -> None:
    """The geometric mean over the models, at float32, of Teal in place over the same engine in-process."""
    ratios = {}
    for contest in contests:
        for row, name in judging.IN_PROCESS_OF.items():
            mine = resident.in_place(name)
            if contest.batch != 1 or name not in judging.FP32 or row not in contest.times or mine not in contest.times:
                continue
            if judging.median(contest.times[row]) / 1e3 >= SLOW_US:
                key = f"{contest.entry.name} {name}"
                ratios[key] = paired_ratio(contest.times[mine], contest.times[row])
    if ratios:
        value, se = judging.geomean(ratios)
        stage.report.judge(HOT, value, se=se, note=", ".join(f"{k} {e.value:.3f}" for k, e in ratios.items()))
