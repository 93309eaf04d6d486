"""What torch.compile(backend="teal") adds to torch.compile's own best, for the small model."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from teal.bench.lanes import Entry, LaneError, paired_difference, take_turns

if TYPE_CHECKING:
    from .stage import Stage

BAR = "models.compile.added_us"
ROWS = ("inductor", "teal")
CLOSE = 1e-4


def measure(stage: Stage) -> None:
    """Raises LaneError where torch or the backend is not here, or it answers otherwise."""
    config = {"subject": stage.subject, "client_core": stage.pair.client, "server_core": stage.pair.worker}
    with stage.own.lane("teal.bench.models.compiling", config) as lane:
        stage.say("compiling")
        one, other = (array("f", lane.answer(row) or b"") for row in ROWS)
        if len(one) != len(other) or any(abs(a - b) > CLOSE for a, b in zip(one, other, strict=True)):
            raise LaneError('backend="teal" answers otherwise than inductor')
        times = take_turns([Entry(row, lane, row, 300, 60) for row in ROWS], stage.plan.rounds, stage.say)
        for row in ROWS:
            note = f"torch.compile, backend {row}; {lane.note}"
            stage.report.add_times(f"torch.compile, {row}", "MLP 64-64-8, one changed line", times[row], note)
    added = paired_difference(times["teal"], times["inductor"])
    stage.report.judge(BAR, added.value, se=added.se, note="over torch.compile with inductor in the process itself")
