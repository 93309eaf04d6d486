"""Percentiles, added cost, overlap."""

from __future__ import annotations

import pytest

from teal.demo.measure import added, overlapping, spread


def test_spread_is_by_nearest_rank() -> None:
    times = spread([float(number) for number in range(1, 101)])
    assert (times.n, times.p50_us, times.p99_us, times.p999_us, times.max_us) == (100, 50.0, 99.0, 100.0, 100.0)
    assert spread([]).n == 0


def test_added_is_taken_call_by_call() -> None:
    base = [100.0, 5000.0, 20.0, 700.0, 3000.0]
    cost = added([time + 7.0 for time in base], base)
    assert cost.p50_us == pytest.approx(7.0)
    assert cost.error_us == pytest.approx(0.0, abs=1e-9)
    assert added([], []).p50_us == 0.0


def test_overlapping_counts_calls_in_flight_together() -> None:
    others = [(0.0, 1.0), (2.0, 3.0)]
    assert overlapping([(0.5, 0.6), (1.0, 2.0), (1.1, 1.9), (1.5, 5.0)], others) == 2
    assert overlapping([(0.0, 1.0)], []) == 0
