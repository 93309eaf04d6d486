"""Figures out of lists of times: percentiles, cost added over another way, and how much two clients overlapped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Span = tuple[float, float]  # (start, end) in seconds on the monotonic clock


@dataclass(frozen=True, slots=True)
class Spread:
    """`n` times in microseconds, by nearest rank: with fewer than 1000 of them p99.9 is the largest."""

    n: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float


@dataclass(frozen=True, slots=True)
class Added:
    """Median of the differences call by call, in microseconds, and its standard error."""

    p50_us: float
    error_us: float


def spread(times: Sequence[float]) -> Spread:
    """The percentiles of `times`, all zero where there are none."""
    if not times:
        return Spread(0, 0.0, 0.0, 0.0, 0.0)
    p50, p99, p999, most = np.quantile(times, (0.5, 0.99, 0.999, 1.0), method="inverted_cdf").tolist()
    return Spread(len(times), p50, p99, p999, most)


def added(times: Sequence[float], base: Sequence[float]) -> Added:
    """What `times` cost over `base`, both in the order of the same inputs.

    The error is that of a median of normal differences whose width is their quartiles': robust to the few calls in
    which the machine did something else.
    """
    differences = np.asarray(times) - np.asarray(base)
    if not differences.size:
        return Added(0.0, 0.0)
    low, middle, high = np.quantile(differences, (0.25, 0.5, 0.75)).tolist()
    return Added(middle, 1.2533 * (high - low) / 1.349 / differences.size**0.5)


def overlapping(spans: Sequence[Span], others: Sequence[Span]) -> int:
    """How many of `spans` were open at the same moment as one of `others`, which follow one another in time."""
    starts = [start for start, _ in others]
    count = 0
    for start, end in spans:
        place = bisect_left(starts, end) - 1  # the last of the others that began before this one ended
        count += place >= 0 and others[place][1] > start
    return count
