"""Runs every test program of the C++ core as a test of its own.

The programs are taken from ``TEAL_CORE_TESTS_DIR`` when it is set (``make test`` has built them by then), else built
once for the whole run, by whichever pytest process comes first. A failing program prints each failed check with file
and line.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "core" / "tests").rglob("*_test.cpp"), *(ROOT / "core" / "tests").rglob("fuzz_*.cpp")])

pytestmark = pytest.mark.xdist_group("core")  # they want the cores to themselves, and one build


def _run(*command: str | Path) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.fail(f"{' '.join(map(str, command))}\n{result.stdout[-4000:]}{result.stderr[-4000:]}", pytrace=False)


def _build(directory: Path) -> None:
    """Configures and builds the core tests in ``directory``; nothing to do when another process has just done so."""
    cmake = shutil.which("cmake")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if cmake is None or compiler is None:
        missing = " and no ".join(name for name, found in (("cmake", cmake), ("C++ compiler", compiler)) if not found)
        pytest.skip(f"no {missing} here, and TEAL_CORE_TESTS_DIR is not set")
    _run(cmake, "-S", ROOT, "-B", directory, "-DTEAL_TESTS=ON", "-DTEAL_PYTHON=OFF", f"-DCMAKE_CXX_COMPILER={compiler}")
    _run(cmake, "--build", directory, "--target", "core_tests", "--parallel", str(os.cpu_count() or 1))


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that holds the built programs."""
    given = os.environ.get("TEAL_CORE_TESTS_DIR")
    if given:
        return Path(given).resolve()
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of this run, but of no single process
    directory = shared / "core-build"
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(directory)
    return directory / "tests"


@pytest.mark.parametrize("name", [source.stem for source in SOURCES])
def test_program(programs: Path, name: str) -> None:
    program = programs / name
    if not program.exists():
        pytest.fail(
            f"{program} does not exist; build it: cmake --build {programs.parent} --target core_tests", pytrace=False
        )
    _run(program)


@pytest.fixture(scope="session")
def emulator() -> str:
    """An emulator of CPUs that are older than this one."""
    found = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if found is None or platform.machine() != "x86_64":
        pytest.skip("no qemu-x86_64 here (apt-get install qemu-user), or not an x86-64 machine")
    return found


@pytest.mark.parametrize("name", ["cpu_test", "descriptor_test", "request_test", "session_test"])
def test_program_on_a_cpu_of_2008(programs: Path, emulator: str, name: str) -> None:
    """x86-64-v2 and nothing beyond it: an instruction that it has not would end the program with SIGILL."""
    _run(emulator, "-cpu", "Nehalem", programs / name)


def test_python_on_a_cpu_without_avx2(emulator: str) -> None:
    """NumPy itself does not start there without AVX, so the CPU has that."""
    program = (
        "import teal.host.worker, teal.cli, teal\n"
        "from teal import _core\n"
        "features = _core.cpu_features()\n"
        "assert features['features']['avx2'] == {'offered': False, 'enabled': False}\n"
        "print(_core.isa(), features['isa_widest'])\n"
    )
    result = subprocess.run(
        [emulator, "-cpu", "max,-avx2", sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "v2 v2\n"


def test_there_are_programs() -> None:
    assert len(SOURCES) > 5
