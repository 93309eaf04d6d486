"""The example decides about real reads of a real disk, and says what came of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from teal import bpf

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "bpf" / "slow_io.py"
ON_DISK = "only .* reads reached a disk"


def test_slow_io(permitted: None, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--reads", "1200", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and re.search(ON_DISK, done.stderr):
        pytest.skip(f"{tmp_path} does not lie on a disk")
    assert (done.returncode, done.stderr) == (0, "")
    reads, slow = map(int, re.search(r"reads: (\d+), (\d+) of them slow", done.stdout).groups())  # type: ignore[union-attr]
    verdicts = re.search(r"verdicts: (\d+) in time, (\d+) at completion, (\d+) never", done.stdout)
    assert verdicts is not None, done.stdout
    in_time, late, never = map(int, verdicts.groups())
    judged = re.search(r"said slow: (\d+) right, (\d+) wrong; said fast: (\d+) right, (\d+) wrong", done.stdout)
    assert judged is not None, done.stdout
    assert 0 <= slow <= reads
    assert in_time + late > 0
    assert sum(map(int, judged.groups())) + never >= reads - 64  # reads that were under way when it detached
    assert list(tmp_path.iterdir()) == []


def test_it_says_why_it_is_skipped(tmp_path: Path) -> None:
    """As somebody who may not use BPF."""
    without = (
        "import teal.bpf, runpy, sys; teal.bpf.why_not = lambda: 'BPF is not permitted here'; sys.argv = sys.argv[1:]; "
    )
    code = without + "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "skipped: BPF is not permitted here\n", "")


def test_bench_rows(permitted: None) -> None:
    from teal.bench import bpf as bench
    from teal.bench.report import Report

    report = Report("laika", bench.PROMISES)
    bench.measure(report, quick=True)
    (bar,) = report.bars
    if bar.value is None:
        assert bar.note  # one core
        return
    assert [row.name for row in report.rows] == ["worker spinning", "worker asleep"]
    assert all(row.n > 0 and row.p50_us is not None and row.cpu_s_per_1000 is not None for row in report.rows)
    assert bar.id == "laika.bpf.roundtrip.p50_us"
    assert bar.ok is not None


def test_bench_whose_events_all_go_unanswered(monkeypatch: pytest.MonkeyPatch, permitted: None) -> None:
    from teal.bench import bpf as bench
    from teal.bench.report import Report

    monkeypatch.setattr(bench, "_trips", lambda n, *_, **__: bench.Trips([], n, 0))
    report = Report("laika", bench.PROMISES)
    bench.measure(report)
    (bar,) = report.bars
    assert (bar.value, bar.ok) == (None, None)
    assert "none of 60000 events" in bar.note


def test_bench_without_bpf(monkeypatch: pytest.MonkeyPatch) -> None:
    from teal.bench import bpf as bench
    from teal.bench.report import Report

    monkeypatch.setattr(bpf, "why_not", lambda: "BPF is not permitted here")
    report = Report("laika", bench.PROMISES)
    bench.measure(report)
    assert (report.rows[0].n, report.rows[0].note) == (0, "BPF is not permitted here")
    assert (report.bars[0].ok, report.bars[0].note) == (None, "BPF is not permitted here")
