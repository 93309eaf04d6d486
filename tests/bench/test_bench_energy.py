"""CPU seconds of process trees, and RAPL counters as files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from teal.bench.energy import Effort, Meter, Packages, cpu_seconds, descendants
from teal.bench.report import row_of

BURN = """
import subprocess, sys, time
code = "import sys\\nprint(flush=True)\\nsys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
end = time.process_time() + 0.05
while time.process_time() < end: pass
print("burnt", flush=True)
sys.stdin.read()
"""


def rapl(root: Path, number: int, uj: int, limit: int) -> Path:
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "energy_uj").write_text(f"{uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{limit}\n")
    return folder / "energy_uj"


def test_a_tree_is_measured_with_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        words = {process.stdout.readline().strip(), process.stdout.readline().strip()}
        assert words == {b"", b"burnt"}
        assert len(descendants(process.pid)) == 2
        assert cpu_seconds([process.pid]) >= 0.05
        assert cpu_seconds([process.pid, descendants(process.pid)[1]]) == pytest.approx(
            cpu_seconds([process.pid]), abs=0.04
        )
        process.communicate()
    assert cpu_seconds([process.pid]) == 0


def test_meter_counts_what_is_spent_between() -> None:
    meter = Meter(Packages(Path("/nonexistent")))
    meter.start([os.getpid()])
    end = time.thread_time() + 0.03
    while time.thread_time() < end:
        pass
    spent = meter.stop()
    assert spent.cpu >= 0.03
    assert spent.joules is None


def test_packages_are_added_and_may_wrap(tmp_path: Path) -> None:
    first, second = rapl(tmp_path, 0, 100, 1000), rapl(tmp_path, 1, 990, 1000)
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of a package
    packages = Packages(tmp_path)
    before = packages.read()
    assert before == [100, 990]
    first.write_text("600\n")
    second.write_text("20\n")
    assert packages.joules(before, packages.read()) == pytest.approx((500 + 30) / 1e6)
    second.unlink()
    assert packages.joules(before, packages.read()) is None


def test_what_cannot_be_read_is_none_with_a_reason(tmp_path: Path) -> None:
    assert Packages(tmp_path / "none").reason.endswith("is not there")
    assert "virtual machines" in Packages(tmp_path).reason
    (tmp_path / "intel-rapl:0").mkdir()
    packages = Packages(tmp_path)
    assert packages.reason.startswith("intel-rapl:0")
    assert packages.read() is None


def test_rows_say_it_per_thousand_calls() -> None:
    row = row_of("a", "b", [1000], "", Effort(0.5, 2.0) + Effort(0.5, 4.0), 500)
    assert (row.cpu_s_per_1000, row.j_per_1000) == (2.0, 12.0)
    assert (Effort(1.0, None) + Effort(1.0, 3.0)).joules is None
    assert row_of("a", "b", [1000]).cpu_s_per_1000 is None
