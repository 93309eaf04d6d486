"""What `teal bench duck` loads is what it says it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from teal.bench.duck import places
from teal.bench.duck.stage import Stage
from teal.bench.report import Report


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_a_megabyte_and_four_kibibytes(tmp_path: Path) -> None:
    found = places.load(tmp_path, 3)
    assert 1_000_000 < found.file_bytes < 1_100_000
    assert found.pages >= 250
    assert found.delta_pages in (1, 2)
    assert len(found.first) == len(found.again) == len(found.changed) == 3


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_rows_and_bars(tmp_path: Path) -> None:
    report = Report("duck", places.PROMISES)
    stage = SimpleNamespace(report=report, folder=tmp_path, plan=SimpleNamespace(fast=50))
    places.measure(cast(Stage, stage))
    assert [row.group for row in report.rows] == ["loading"] * 3
    assert [bar.id for bar in report.bars] == list(places.PROMISES)
