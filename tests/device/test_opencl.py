"""OpenCL drivers: finding them, broken ones, drivers that copy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from teal import device
from teal.device import MappedRegion, Place, Resident, Task, opencl, opencl_runtimes, source
from teal.errors import InvalidArgument, KernelFailed, TealError

LIST = """
from teal import device
for each in device.devices():
    print(each.name, each.available, each.what, sep="|")
"""


def devices_of_a_process(**variables: str) -> list[list[str]]:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"OCL_ICD_VENDORS", "PYOPENCL_HOME"}
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIST],
        capture_output=True,
        text=True,
        env=environment | variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.split("|", 2) for line in done.stdout.splitlines()]


@pytest.fixture
def any_opencl() -> Iterator[opencl.OpenClDevice]:
    for name in ("opencl:pocl", "opencl:intel"):
        try:
            made = device.open(name)
        except TealError:
            continue
        assert isinstance(made, opencl.OpenClDevice)
        yield made
        made.close()
        return
    pytest.skip("no OpenCL driver that works here")


def test_drivers_are_found_without_any_variable() -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    found = devices_of_a_process()
    assert found[0][:2] == ["cpu", "True"]
    names = [name for name, available, _ in found if available == "True"]
    if opencl_runtimes.files_of("intel-opencl-rt", "libintelocl.so"):
        assert "opencl:intel" in names
    assert len(names) == len(set(names))  # the same driver is not loaded twice


def test_a_broken_driver_is_said_and_hides_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    (tmp_path / "broken.icd").write_text("/nowhere/libbroken.so\n")
    (tmp_path / "text.icd").write_text(f"{__file__}\n")
    found = devices_of_a_process(OCL_ICD_VENDORS=f"{tmp_path}/", PYOPENCL_HOME=str(tmp_path))
    assert found[0][:2] == ["cpu", "True"]
    missing = [what for name, available, what in found if name == "opencl" and available == "False"]
    packaged = [name for name, available, _ in found if name.startswith("opencl:") and available == "True"]
    assert packaged or ("no OpenCL driver answers" in missing[0] and "pip install" in missing[0])


def test_pyopencl_that_is_missing_is_said(tmp_path: Path) -> None:
    (tmp_path / "pyopencl.py").write_text("raise ImportError('taken away for the test')\n")
    found = devices_of_a_process(PYTHONPATH=str(tmp_path))
    (what,) = [what for name, _, what in found if name == "opencl"]
    assert "taken away for the test" in what
    assert "teal-runtime[opencl]" in what


def test_a_vendors_directory_that_the_user_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_runtimes, "_done", None)
    monkeypatch.setenv("OCL_ICD_VENDORS", "/mine/")
    (found,) = opencl_runtimes.prepare()
    assert (found.library, found.origin) == ("/mine/", "OCL_ICD_VENDORS, set by you")
    assert os.environ["OCL_ICD_VENDORS"] == "/mine/"


def test_the_systems_drivers_are_read_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "a.icd").write_text("libone.so\n")
    (tmp_path / "b.icd").write_text("")
    (tmp_path / "c.txt").write_text("libthree.so\n")
    assert [each.library for each in opencl_runtimes.system_runtimes(tmp_path)] == ["libone.so"]
    assert opencl_runtimes.system_runtimes(tmp_path / "nowhere") == []


def test_a_copy_inside_the_driver_is_found_and_refused(any_opencl: opencl.OpenClDevice) -> None:
    any_opencl._sharing = any_opencl.cl.mem_flags.COPY_HOST_PTR  # what a driver may do in silence
    region = MappedRegion.create(8192)
    region.bytes[:] = 5
    with pytest.raises(KernelFailed, match="made a copy of the region; allow it with copies=True"):
        any_opencl.import_region(region)
    assert (region.bytes == 5).all()


def test_a_copy_that_is_allowed_is_counted_and_kept_in_step(any_opencl: opencl.OpenClDevice) -> None:
    any_opencl._sharing = any_opencl.cl.mem_flags.COPY_HOST_PTR
    region = MappedRegion.create(8192)
    imported = any_opencl.import_region(region, copies=True)
    assert imported.copied
    assert any_opencl.statistics()["copied_imports"] == 1
    program = any_opencl.build(source.text(source.SCALE))
    parts = [Place(imported, at, 64) for at in (0, 256, 512, 1024)]
    weights, x, y = (region.array(at, (16,), np.float32) for at in (0, 256, 512))
    launch = program.prepare(Task(*parts, 16))
    for factor in range(1, 5):
        weights[0], x[:] = factor, np.arange(16)
        launch.run()
        assert (y == x * factor).all()
        launch.start().wait()
    any_opencl._sharing = any_opencl.cl.mem_flags.USE_HOST_PTR
    with Resident(program) as resident, pytest.raises(InvalidArgument, match="was copied by the device; use a launch"):
        resident.add(Place(imported, 4096, 128), Task(*parts, 16))


def test_groups_share_a_batch_by_items_and_strides(any_opencl: opencl.OpenClDevice) -> None:
    region = MappedRegion.create(1 << 16)
    imported = any_opencl.import_region(region)
    program = any_opencl.build(source.text(source.SCALE))
    n = 1000
    parts = [Place(imported, at, nbytes) for at, nbytes in ((0, 64), (4096, 4 * n), (16384, 4 * n), (32768, 64))]
    region.array(0, (1,), np.float32)[0] = 3
    x, y = region.array(4096, (n,), np.float32), region.array(16384, (n + 8,), np.float32)
    x[:], y[n:] = np.arange(n), -1
    task = Task(*parts, n, items=64, strides=(4, 4, 0))
    assert task.groups == 16
    program.prepare(task).run()
    assert (y[:n] == x * 3).all()
    assert (y[n:] == -1).all()
    with pytest.raises(InvalidArgument, match="items needs strides"):
        Task(*parts, n, items=64)


def test_graphs_are_not_for_opencl(any_opencl: opencl.OpenClDevice) -> None:
    imported = any_opencl.import_region(MappedRegion.create(4096))
    place = Place(imported, 0, 64)
    with pytest.raises(InvalidArgument, match="no graphs"):
        any_opencl.build(source.text(source.IDENTITY)).prepare(Task(place, place, place, place, 1), "graph")


@pytest.mark.parametrize("scratch", [-1, 32769])
def test_scratch_has_a_limit(scratch: int) -> None:
    with pytest.raises(InvalidArgument, match="scratch: "):
        source.assemble("", "opencl", scratch)


def test_threads_of_a_driver_are_kept_to_the_cores_given() -> None:
    script = (
        "import os; from teal import device; core = sorted(os.sched_getaffinity(0))[-1]\n"
        "before = set(os.listdir('/proc/self/task')); made = device.open('opencl', cores={core})\n"
        "threads = {int(name) for name in set(os.listdir('/proc/self/task')) - before}\n"
        "assert all(os.sched_getaffinity(thread) == {core} for thread in threads), threads\n"
        "print(len(threads))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if "NotFound" in done.stderr or "its compiler takes none" in done.stderr:
        pytest.skip("no OpenCL driver that works here")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0
