"""Tools of the tests of liblaika: which compilers are here, and how C programs are built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1", "-pthread")

Compile = Callable[..., Path]


def tool(*names: str) -> str:
    """The path of the first of these programs that is here; skips the test when none is."""
    beside = Path(sys.executable).parent
    for name in names:
        if found := shutil.which(name) or shutil.which(name, path=str(beside)):
            return found
    pytest.skip(f"no {' or '.join(names)} here")


def run(*command: str | Path) -> str:
    """Its output. Fails the test, with what it said, when it fails."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.fail(f"{' '.join(map(str, command))}\n{result.stdout[-4000:]}{result.stderr[-4000:]}", pytrace=False)
    return result.stdout
