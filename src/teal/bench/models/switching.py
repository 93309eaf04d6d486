"""What it costs to call another resident model than the one called last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from teal.bench import models
from teal.bench.lanes import Entry, Times, take_turns

if TYPE_CHECKING:
    from .stage import Stage

BAR = "models.switch.p50_us"
COUNT = 8


def measure(stage: Stage) -> None:
    """Calls of one perceptron beside calls of eight in turn, from one client; the bar is the difference."""
    from teal.bench import client
    from teal.bench.lanes import paired_difference

    for name in client.SWITCHED:
        stage.host.ask("load", name=name, source=str(models.mlp()), kernel="onnx", threads=1, pool="bound")
    config = {"subject": stage.subject, "address": stage.address, "core": stage.pair.client, "server_core": None}
    with stage.own.lane("teal.bench.client", config) as lane:
        lane.served_by = stage.host
        entries = [Entry(row, lane, row, 400, 60) for row in ("one model", "eight models")]
        times: dict[str, Times] = take_turns(entries, stage.plan.rounds, stage.say)
    stage.host.ask("unload_all")
    for row in times:
        stage.report.add_times(row, "switching, MLP 64-64-8", times[row], "prepared calls")
    added = paired_difference(times["eight models"], times["one model"])
    note = f"eight resident models in turn over one ({added.value:.2f} µs a switch)"
    stage.report.judge(BAR, max(0.0, added.value), se=added.se, note=note)
