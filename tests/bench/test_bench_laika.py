"""`teal bench laika` on the devices that are here, and its judgements on times made up for them."""

from __future__ import annotations

import json
from array import array

import pytest
from click.testing import CliRunner

from teal.bench import capi, hostile, laika, machine
from teal.bench.lanes import Times
from teal.bench.report import Report
from teal.cli.bench import command

TINY = laika.Plan(blocks=2, resident=50, launches=20, warm=5, jitter_seconds=0.01)


def made_up(launch_ns: int, polled_ns: int, resident_ns: int) -> laika.Ways:
    def times(ns: int) -> Times:
        return Times([array("q", [ns] * 5)] * 3)

    rows = {
        "echo floor 64 B": 100,
        "launch": launch_ns,
        "launch, on the device's thread": polled_ns,
        "resident": resident_ns,
    }
    return laika.Ways({row: times(ns) for row, ns in rows.items()})


def test_the_bench_measures_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laika, "QUICK", TINY)
    monkeypatch.setattr(laika, "parts", lambda *_: [])  # they take half a minute, and have tests of their own
    done = CliRunner().invoke(command, ["laika", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert [bar["id"] for bar in report["bars"]] == list(laika.PROMISES)
    rows = {row["name"]: row for row in report["rows"]}
    assert rows["cpu resident"]["n"] == 100
    for runtime in laika.RUNTIMES:
        bar = next(bar for bar in report["bars"] if bar["id"].endswith(runtime))
        here = rows[f"opencl:{runtime} resident"]["n"] > 0
        assert (bar["value"] is not None) is here
        assert bar["note"]


def test_ratios_are_judged_against_the_cheaper_launch() -> None:
    report = Report("laika", laika.PROMISES)
    laika.judge(report, {"pocl": made_up(9_000, 12_000, 600), "intel": made_up(9_000, 4_000, 500)})
    found = {bar.id: bar for bar in report.bars}
    assert found["laika.apk_vs_pl.ratio.pocl"].value == pytest.approx(15)
    assert found["laika.apk_vs_pl.ratio.pocl"].ok is True
    assert found["laika.apk_vs_pl.ratio.intel"].value == pytest.approx(8)
    assert found["laika.apk_vs_pl.ratio.intel"].ok is False
    assert found["laika.apk.added.p50_us"].value == pytest.approx(0.6)
    assert found["laika.apk.added.p50_us"].note.startswith("pocl")


def test_a_runtime_that_is_not_here_is_not_judged() -> None:
    report = Report("laika", laika.PROMISES)
    laika.judge(report, {"pocl": made_up(9_000, 12_000, 600)})
    report.judge_rest("not here")
    intel = next(bar for bar in report.bars if bar.id.endswith("intel"))
    assert (intel.value, intel.ok, intel.note) == (None, None, "not here")
    assert [bar.id for bar in report.bars] == list(laika.PROMISES)


def test_a_part_that_fails_leaves_its_bars_unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("it broke\nsomewhere")

    monkeypatch.setattr(laika, "QUICK", TINY)
    monkeypatch.setattr(laika, "parts", lambda *_: [("breaking", ("laika.c.identity.p50_us",), fail)])
    report = laika.measure(quick=True)
    bar = next(bar for bar in report.bars if bar.id == "laika.c.identity.p50_us")
    assert (bar.value, bar.ok, bar.note) == (None, None, "breaking failed: it broke")
    assert any(row.name == "breaking failed" and row.n == 0 for row in report.rows)


def test_a_flooding_client_is_measured() -> None:
    report = Report("laika", laika.PROMISES)
    hostile.measure(report, machine.two_cores(), blocks=2)
    (bar,) = report.bars
    assert bar.id == hostile.BAR
    assert bar.value is None or bar.value > 0
    assert [row.name for row in report.rows] == ["victim alone", "victim flooded"]
    assert all(row.n > 0 and row.cpu_s_per_1000 is not None for row in report.rows)


def test_a_c_client_is_measured() -> None:
    report = Report("laika", laika.PROMISES)
    cores = machine.two_cores()
    for row in capi.rows(2_000, 64, (cores.client, cores.worker)):
        assert row.p50_us > 0
        assert row.cpu_s_per_1000 > 0
    laika.from_c(report, cores, quick=True)
    assert [row.cpu_s_per_1000 is not None for row in report.rows] == [True] * 3
