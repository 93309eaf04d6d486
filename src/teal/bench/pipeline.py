"""What lies between two stages of a pipeline: from the end of one kernel to the beginning of the next.

Theory of operation: the worker notes in the completion lines when each kernel begins and ends; the gap between two
stages is the difference, so nothing of the client is in it. Stages that do no work (``identity``) leave what Teal
takes. Beside it the same calls by a client that waits for each answer before it submits the next.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass

import numpy as np

import teal


@dataclass(frozen=True, slots=True)
class Gap:
    """Microseconds. gap: end of a stage to the beginning of the next, in the worker. total: submit of the first to the
    end of the last seen; by_hand: the same with the client between the stages."""

    stages: int
    rounds: int
    gap_p50_us: float
    gap_p99_us: float
    total_p50_us: float
    by_hand_p50_us: float


def measure(host: teal.Host, *, stages: int = 8, rounds: int = 300, kernel: str = "builtin:identity") -> Gap:
    """A pipeline of equal stages on 64 floats, against the client's own loop, in turns."""
    model = host.load("bench-stage", kernel)
    gaps: list[float] = []
    totals: list[float] = []
    by_hand: list[float] = []
    try:
        for _ in range(20):
            _pipeline(model, stages), _by_hand(model, stages)
        for _ in range(rounds):
            total, between = _pipeline(model, stages)
            totals.append(total)
            gaps += between
            by_hand.append(_by_hand(model, stages))
    finally:
        host.unload("bench-stage")
    gaps.sort()
    return Gap(
        stages,
        rounds,
        statistics.median(gaps),
        gaps[int(len(gaps) * 0.99)],
        statistics.median(totals),
        statistics.median(by_hand),
    )


_INPUT = np.arange(64, dtype=np.float32)


def _pipeline(model: teal.Model, stages: int) -> tuple[float, list[float]]:
    start = time.perf_counter_ns()
    futures = [model.submit(_INPUT)]
    for _ in range(stages - 1):
        futures.append(model.submit(futures[-1]))
    slots = [future._slot for future in futures]
    futures[-1].result()
    total = (time.perf_counter_ns() - start) / 1000
    return total, [b.began_after_ns(a) / 1000 for a, b in itertools.pairwise(slots) if a is not None and b is not None]


def _by_hand(model: teal.Model, stages: int) -> float:
    start = time.perf_counter_ns()
    outputs = model(_INPUT)
    for _ in range(stages - 1):
        outputs = model(outputs[0])
    return (time.perf_counter_ns() - start) / 1000
