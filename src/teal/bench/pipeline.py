"""What a stage of a pipeline costs between its neighbours: from the end of one kernel to the beginning of the next.

Theory of operation: the worker notes when each kernel begins and ends in the completion lines; the gap between two
stages is the difference, so nothing of the client is in it. ``identity`` stages do no work: what is left is Teal. The
second figure is what the client would have to add without pipelines: wait for the first answer, submit the next.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

import teal


@dataclass(frozen=True, slots=True)
class Gap:
    """Microseconds. chained: end of a stage to the beginning of the next, in the worker; through_client: the same with
    the client in between; total_chained, total_through: of all stages, from submit to the last answer seen."""

    stages: int
    rounds: int
    chained_p50_us: float
    chained_p99_us: float
    through_p50_us: float
    total_chained_us: float
    total_through_us: float


def measure(host: teal.Host, *, stages: int = 8, rounds: int = 300, kernel: str = "builtin:identity") -> Gap:
    """A pipeline of ``stages`` equal stages on 64 floats, against the client's own loop."""
    model = host.load("bench-stage", kernel)
    try:
        x = np.arange(64, dtype=np.float32)
        chained: list[float] = []
        through: list[float] = []
        totals: tuple[list[float], list[float]] = ([], [])
        for round_ in range(rounds + 20):
            start = time.perf_counter_ns()
            futures = [model.submit(x)]
            for _ in range(stages - 1):
                futures.append(model.submit(futures[-1]))
            slots = [future._slot for future in futures]
            while not futures[-1].done():
                pass
            total = time.perf_counter_ns() - start
            gaps = [b.began_after_ns(a) / 1000 for a, b in zip(slots, slots[1:], strict=False) if a and b]
            del slots
            start = time.perf_counter_ns()
            value, before = model.submit(x), None
            waits = []
            for _ in range(stages - 1):
                before = value
                value = model.submit(before.result()[0])
                del before
            value.result()
            own = time.perf_counter_ns() - start
            waits.append((own - total) / 1000 / (stages - 1))
            if round_ >= 20:
                chained += gaps
                through += waits
                totals[0].append(total / 1000)
                totals[1].append(own / 1000)
        ordered = sorted(chained)
        return Gap(
            stages,
            rounds,
            statistics.median(ordered),
            ordered[int(len(ordered) * 0.99)],
            statistics.median(ordered) + statistics.median(through),
            statistics.median(totals[0]),
            statistics.median(totals[1]),
        )
    finally:
        host.unload("bench-stage")
