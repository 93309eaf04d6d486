"""`teal version`, and what all commands have in common: help with an example, no unknown options."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest

import teal

Typed = Callable[[Any], Any]
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
