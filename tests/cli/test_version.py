"""`teal version`, and what all commands have in common: help with an example, no unknown options."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import teal

Typed = Callable[[Any], Any]
TEAL = (sys.executable, "-m", "teal")
COMMANDS = ("serve", "load", "unload", "ls", "infer", "stat", "stop", "version")


def test_json(typed: Typed) -> None:
    found = typed("version --json").json
    assert found["teal"] == teal.__version__
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert set(found) == {"teal", "abi", "protocol", "isa", "python", "numpy", "onnxruntime"}


def test_text_and_a_missing_engine(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(package: str) -> str:
        if package == "onnxruntime":
            raise importlib.metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    lines = dict(line.split(maxsplit=1) for line in typed("version").out.splitlines())
    assert lines["teal"] == teal.__version__
    assert lines["onnxruntime"] == "not installed"
    assert typed("version --json").json["onnxruntime"] is None


@pytest.mark.parametrize("command", COMMANDS)
def test_help(typed: Typed, command: str) -> None:
    said = typed([command, "--help"])
    assert said.status == 0
    assert f"    teal {command}" in said.out
    assert "Example" in said.out
    assert "--json" in said.out
    assert ("--host" in said.out) == (command not in ("serve", "version"))
    assert typed([command, "--no-such-option"]).status == 2


def test_as_an_option_and_as_a_module(typed: Typed) -> None:
    said = subprocess.run([*TEAL, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == typed("--version").out == f"teal {teal.__version__}\n"


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "2>&-"])
def test_without_standard_streams(shared: str, closed: str) -> None:
    """Of a daemon that closed them: output goes nowhere, and no socket becomes one of them."""
    for line in (["sim", "--requests", "100"], ["ls", "--host", shared], ["ls", "--host", shared, "--json"]):
        said = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *TEAL, *line], capture_output=True, check=False)
        assert (said.returncode, said.stderr) == (0, b"")


@pytest.mark.parametrize("line", ["version", "version --json", "sim --requests 100"])
def test_no_room_for_the_output(line: str) -> None:
    with open("/dev/full", "w") as full:
        said = subprocess.run([*TEAL, *line.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (said.returncode, said.stderr) == (1, "teal: output cannot be written: No space left on device\n")


def test_flags_for_a_compiler_together(typed: Typed) -> None:
    both = typed("config --cflags --libs").out.split()
    assert both == [*typed("config --cflags").out.split(), *typed("config --libs").out.split()]
    assert both[0].startswith("-I")
