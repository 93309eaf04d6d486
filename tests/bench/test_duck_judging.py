"""What `teal bench duck` says of judged runs: the worse of two ways is what the promise is about."""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from teal.bench.duck import judging
from teal.bench.duck.stage import Stage
from teal.bench.lanes import Times
from teal.bench.report import Report
from teal.duck import cc


def test_the_worse_way_counts() -> None:
    report = Report("duck", judging.PROMISES)
    runs = judging.Runs(
        judged=Times([array("q", [100, 100, 100])]),
        spawned=Times([array("q", [200, 200, 200])]),
        judged_series=[300],
        spawned_series=[200],
    )
    judging._judge(cast(Stage, SimpleNamespace(report=report)), runs)
    assert [(bar.id, bar.value, bar.ok) for bar in report.bars] == [("duck.judge.vs_vfork_exec", 1.5, True)]
    assert report.bars[0].note == f"one at a time 0.50, in a series of {judging.SERIES} 1.50"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_rows_of_a_program_without_a_libc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SERIES", 10)
    file = tmp_path / "bare.elf"
    source = Path(judging.__file__).with_name("bare.c")
    assert cc.compile_program(source, file, abi="linux", flags=["-nostdlib"]).nbytes < 10_000
    report = Report("duck", judging.PROMISES)
    programs = {"nothing": str(file), "bare": str(file)}
    plan = SimpleNamespace(blocks=2)
    judging.measure(cast(Stage, SimpleNamespace(report=report, plan=plan, programs=programs, say=lambda _: None)))
    assert [row.n for row in report.rows] == [40, 40, 2, 2, 10] * 2
    assert "standard deviation" in report.rows[4].note
    assert report.bars[0].value is not None
