"""Loading programs: the first time, again, and one that has changed a little."""

from __future__ import annotations

from teal.bench.report import Promise

from .stage import Stage

PROMISES = {
    "duck.load.first_us": Promise(300, "lower", "µs"),
    "duck.load.again_us": Promise(10, "lower", "µs"),
    "duck.load.delta_pages": Promise(2, "lower", "pages"),
    "duck.judge.vs_vfork_exec": Promise(1.5, "lower", "×"),  # noqa: RUF001
    "duck.story.total_ratio": Promise(10, "higher", "×"),  # noqa: RUF001
}


def measure(stage: Stage) -> None:
    """Into a place that is there already."""
