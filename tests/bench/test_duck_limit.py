"""The plain loop beside the GEMV of `teal bench duck`: it runs, and says what it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from teal.bench.duck import limit
from teal.bench.lanes import LaneError
from teal.duck import cc

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core here"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("limit") / "limit.elf"
    source = Path(limit.__file__).with_name("limit.c")
    cc.compile_program(source, path, abi="linux", level="3", flags=["-pthread"])
    if subprocess.run([path, "memfd", "4096", "32", "1", "0", "0"], check=False, capture_output=True).returncode == 1:
        pytest.skip("no AVX2 here")
    return str(path)


@pytest.mark.parametrize("memory", list(limit.MEMORIES))
def test_each_memory(program: str, memory: str) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    found = limit.measure(program, memory, 8 << 20, 1024, 5, (first, second))
    assert len(found.one) == len(found.two) == 5
    assert min(found.one + found.two) > 0
    assert found.speedup > 0


def test_what_cannot_be_measured_is_said(program: str) -> None:
    with pytest.raises(LaneError, match="ended with status 3"):
        limit.measure(program, "memfd", 1 << 20, 1024, 1, (4095, 4095))
    with pytest.raises(LaneError, match="No such file"):
        limit.measure(program + ".gone", "memfd", 1 << 20, 1024, 1, (0, 1))
