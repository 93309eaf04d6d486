"""An agent that dies under load, and one that is replaced under load."""

from __future__ import annotations

from teal.bench.report import Promise

from .stage import Stage

PROMISES = {
    "wave.fallback.gap_ms": Promise(51, "lower", "ms"),
    "wave.upgrade.max_delay_ms": Promise(5, "lower", "ms"),
    "wave.upgrade.lost": Promise(0, "lower", "requests"),
}


def measure(stage: Stage) -> None:
    for bar in PROMISES:
        stage.report.judge(bar, None, note="agents as processes of their own are not here yet")
