"""How figures are written."""

from __future__ import annotations

import pytest

from teal.demo.report import duration, size


@pytest.mark.parametrize(
    ("us", "written"),
    [(0, "0 µs"), (0.52, "0.5 µs"), (9.99, "10.0 µs"), (12.3, "12 µs"), (999, "999 µs"), (1234, "1.23 ms"),
     (12_345, "12.3 ms"), (123_456, "123 ms"), (1_500_000, "1.50 s"), (123_000_000, "123 s")],
)  # fmt: skip
def test_durations_have_three_figures_and_a_unit(us: float, written: str) -> None:
    assert duration(us) == written


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (None, "?"),
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 KB"),
        (23_000_000, "23 MB"),
        (2_100_000_000, "2.1 GB"),
    ],
)
def test_sizes(count: int | None, written: str) -> None:
    assert size(count) == written
