"""The form of results: percentiles that are not invented, bars that are not judged without a value."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from teal.bench.report import Promise, Report, percentile, row_of, shown

PROMISES = {"fast": Promise(2, "lower", "µs"), "ahead": Promise(4, "higher", "×")}  # noqa: RUF001


@pytest.fixture
def report() -> Report:
    return Report("toy", PROMISES)


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        (0, 0.5, None),
        (1, 0.5, None),
        (2, 0.5, 1),
        (3, 0.5, 2),
        (1001, 0.5, 501),
        (99, 0.99, None),
        (100, 0.99, 99),
        (999, 0.999, None),
        (1000, 0.999, 999),
    ],
)
def test_percentile_needs_enough_samples(count: int, share: float, expected: float | None) -> None:
    assert percentile(range(1, count + 1), share) == expected


def test_row_is_in_microseconds_whatever_the_order() -> None:
    row = row_of("x", "g", [3000, 1000, 2000])
    assert (row.n, row.p50_us, row.p99_us, row.p999_us) == (3, 2.0, None, None)


@pytest.mark.parametrize(
    ("bar", "value", "kept"), [("fast", 2, True), ("fast", 2.1, False), ("ahead", 4, True), ("ahead", 3.9, False)]
)
def test_bar_is_judged_by_its_promise(report: Report, bar: str, value: float, kept: bool) -> None:
    report.judge(bar, value)
    assert report.bars[0].ok is kept


def test_contradicted_bar_is_missed(report: Report) -> None:
    report.judge("fast", 1, ok=False, note="contradicted")
    assert report.bars[0].ok is False


def test_bar_without_value_says_why_and_is_not_judged(report: Report) -> None:
    with pytest.raises(ValueError, match="no reason"):
        report.judge("fast", None)
    report.judge("fast", None, note="not installed")
    assert (report.bars[0].ok, report.bars[0].value) == (None, None)


def test_bar_is_judged_once_and_only_if_promised(report: Report) -> None:
    report.judge("fast", 1)
    with pytest.raises(ValueError, match="twice"):
        report.judge("fast", 1)
    with pytest.raises(KeyError):
        report.judge("unknown", 1)


def test_every_promise_ends_as_a_bar_in_its_order(report: Report) -> None:
    report.judge("ahead", 5)
    report.judge_rest("nobody looked")
    assert [(bar.id, bar.ok) for bar in report.bars] == [("fast", None), ("ahead", True)]
    assert report.bars[0].note == "nobody looked"


def test_json_and_table_show_the_same(report: Report) -> None:
    report.machine = {"cpu": "toy", "jitter": {"core 0": {"lost_ms": 1.5}}, "governor": None}
    report.versions = {"python": "3"}
    report.add("a call", "calls", [1500] * 1000, "warm")
    report.absent("a rival", "calls", "not installed: run make bench-setup")
    report.judge("fast", 1.5, se=0.1)
    report.judge_rest("not measured")
    found = json.loads(report.as_json())
    assert set(found) == {"bench", "machine", "versions", "settings", "rows", "bars"}
    assert found["rows"][0]["p999_us"] == 1.5
    assert found["rows"][1] == {
        "name": "a rival", "group": "calls", "n": 0, "p50_us": None, "p99_us": None, "p999_us": None,
        "cpu_s_per_1000": None, "j_per_1000": None,
        "note": "not installed: run make bench-setup",
    }  # fmt: skip
    assert {"id", "value", "limit", "better", "ok"} <= set(found["bars"][0])
    console = Console(width=160, file=io.StringIO())
    console.print(report.as_table())
    text = console.file.getvalue()
    for word in ("a call", "make bench-setup", "kept", "not measured", "lost ms 1.5", "1.50"):
        assert word in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (1234.5, "1,234"), (0.5678, "0.568"), (-12.34, "-12.3"), (1e-9, "0.000000")],  # noqa: RUF001
)
def test_numbers_are_shown_without_exponents(value: float | None, text: str) -> None:
    assert shown(value) == text
