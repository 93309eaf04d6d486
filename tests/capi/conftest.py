"""Builds of liblaika's C tests: plain, and under AddressSanitizer and UBSan (with a liblaika that is built so too)."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from teal.cli import config

sys.path.insert(0, str(Path(__file__).parent))

from capi_builds import HERE, ROOT, STRICT, Compile, run, tool


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all processes of this run."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "capi-build"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def compiled(shared_directory: Path) -> Compile:
    """``compiled("calls")``: the path of the program, built with the installed library as docs/laika.md says."""

    def compiled(name: str) -> Path:
        cc = tool("cc", "gcc", "clang")
        program = shared_directory / name
        with (shared_directory / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                flags = config.flags()
                run(cc, *STRICT, HERE / f"{name}.c", *flags["cflags"], *flags["libs"], "-o", program)
        return program

    return compiled


@pytest.fixture(scope="session")
def sanitized(shared_directory: Path) -> Compile:
    """The same with AddressSanitizer and UBSan, in the program and in the library."""
    cmake, cc = tool("cmake"), tool("gcc", "cc")
    build = Path(os.environ.get("TEAL_CAPI_ASAN_DIR") or shared_directory / "asan")
    with (shared_directory / "asan.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (build / "liblaika.so").exists():
            options = ["-DTEAL_PYTHON=OFF", "-DTEAL_SANITIZE=address,undefined", "-DCMAKE_BUILD_TYPE=None"]
            options += ["-DTEAL_SANITIZE_LEVEL=-O0", "-DCMAKE_CXX_FLAGS=-g1"]  # compiles in half the time
            run(cmake, "-S", ROOT, "-B", build, *options)
            run(cmake, "--build", build, "--target", "laika", "--parallel", str(os.cpu_count() or 1))

    def sanitized(name: str) -> Path:
        program = shared_directory / f"{name}-asan"
        with (shared_directory / f"{name}-asan.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                include = f"-I{ROOT / 'core' / 'capi' / 'include'}"
                run(cc, *STRICT, "-fsanitize=address,undefined", HERE / f"{name}.c", include, f"-L{build}",
                    f"-Wl,-rpath,{build}", "-llaika", "-o", program)  # fmt: skip
        return program

    return sanitized
