"""`teal verify`, and `teal load --digest`: on a running host."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Teal = Callable[[str], Any]


def test_verify_one_and_all(teal: Teal, name: str, mlp: Path) -> None:
    digest = hashlib.sha256(mlp.read_bytes()).hexdigest()
    assert teal(f"load {name} {mlp} --digest {digest}").status == 0
    said = teal(f"verify {name}")
    assert (said.status, said.out) == (0, f"{name} version 1: as loaded (SHA-256 {digest[:16]}…, 18.5 KiB)\n")
    every = {each["name"]: each for each in teal("verify --json").json["models"]}
    assert every[name]["ok"]
    assert every[name]["found"] == digest
    assert every["echo"]["found"] is None
    assert "not loaded" in teal("verify nothing-of-that-name").err


def test_load_with_another_digest(teal: Teal, name: str, mlp: Path) -> None:
    said = teal(f"load {name} {mlp} --digest {'0' * 64}")
    assert said.status == 1
    assert "its SHA-256 is" in said.err
    assert f"{name} " not in teal("ls").out


def test_one_that_is_not_as_loaded_is_said(teal: Teal, monkeypatch: pytest.MonkeyPatch) -> None:
    from teal.host.host import Host
    from teal.host.records import Verified

    wrong = Verified("m", 3, "onnx", "a" * 64, "b" * 64, True, 10)
    monkeypatch.setattr(Host, "verify", lambda self, name, version: [wrong])
    said = teal("verify")
    assert said.status == 1
    assert said.out.startswith("m version 3: NOT AS LOADED")
    assert not Verified("m", 3, "onnx", "a" * 64, "a" * 64, False, 10).ok
