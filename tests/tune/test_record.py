"""Records of tuned models: what is kept, where, and everything that makes one unusable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from teal._version import __version__
from teal.tune import record
from teal.tune.record import Record, Unusable


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(b"a model")
    return path


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def of(model: Path, **more: object) -> Record:
    """A record that suits the model here."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    known = Record(
        digest=record.digest_of(model),
        machine=record.machine(),
        teal=__version__,
        engine=record.engine("onnx"),
        kernel="onnx",
        precision="fp32",
        threads=1,
        us={1: 12.5, 8: 50.0},
    )
    return replace(known, **more)  # type: ignore[arg-type]


def test_a_record_is_found_again(model: Path) -> None:
    assert record.found(model) is None
    kept = of(model)
    path = record.place_for(model, kept.digest)
    record.write(kept, path)
    assert path == model.with_name("model.onnx.tuned.json")
    assert record.found(model) == (kept, path)
    assert kept.words == "onnx fp32, 1 thread"
    assert not list(path.parent.glob("*.partial"))


def test_a_folder_that_cannot_be_written_has_its_record_elsewhere(
    model: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record.os, "access", lambda *_: False)  # root may write everywhere
    kept = of(model)
    path = record.place_for(model, kept.digest)
    assert state in path.parents
    record.write(kept, path)
    assert record.found(model) == (kept, path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"digest": "0" * 64}, "another file"),
        ({"machine": "another CPU, 2 cores"}, "another machine .another CPU, 2 cores"),
        ({"teal": "0.0.0"}, "Teal 0.0.0"),
        ({"engine": "onnxruntime 0.1"}, "onnxruntime 0.1, here is onnxruntime "),
    ],
)
def test_what_does_not_suit_is_not_used(model: Path, change: dict[str, object], why: str) -> None:
    record.write(of(model, **change), record.beside(model))
    with pytest.raises(Unusable, match=why):
        record.found(model)


def test_one_that_suits_goes_before_one_that_does_not(model: Path) -> None:
    record.write(of(model, teal="0.0.0"), record.beside(model))
    kept = of(model)
    record.folder().mkdir(parents=True)
    record.write(kept, record.in_folder(kept.digest))
    assert record.found(model) == (kept, record.in_folder(kept.digest))


Damage = Callable[[dict[str, object]], object]


@pytest.mark.parametrize(
    "damage",
    [
        lambda told: "{",
        lambda told: "[]",
        lambda told: "null",
        lambda told: "[" * 100_000,
        lambda told: told | {"layout": 0},
        lambda told: told | {"kernel": "function"},
        lambda told: told | {"precision": "fp8"},
        lambda told: told | {"threads": 0},
        lambda told: told | {"threads": True},
        lambda told: told | {"threads": "1"},
        lambda told: told | {"precision": "int8"},
        lambda told: told | {"precision": "int8", "file": "../other.onnx", "file_digest": "0" * 64},
        lambda told: told | {"precision": "int8", "file": "/etc/passwd", "file_digest": "0" * 64},
        lambda told: told | {"precision": "int8", "file": "a.onnx", "file_digest": "0"},
        lambda told: told | {"file": "a.onnx", "file_digest": "0" * 64},
        lambda told: told | {"options": {"a": "b"}},
        lambda told: told | {"us": {"one": 1}},
        lambda told: {key: value for key, value in told.items() if key != "digest"},
    ],
)
def test_a_damaged_record_is_not_used(model: Path, damage: Damage) -> None:
    told = damage({"layout": record.LAYOUT, **asdict(of(model))})
    record.beside(model).write_text(told if isinstance(told, str) else json.dumps(told))
    record.beside(model).chmod(0o644)
    with pytest.raises(Unusable, match="damaged or of another version"):
        record.found(model)


def test_a_record_that_others_can_write_is_not_used(model: Path) -> None:
    record.write(of(model), record.beside(model))
    record.beside(model).chmod(0o666)
    with pytest.raises(Unusable, match="others can write it"):
        record.found(model)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_record_of_somebody_else_is_not_used(model: Path) -> None:
    record.write(of(model), record.beside(model))
    os.chown(record.beside(model), 12345, 12345)
    with pytest.raises(Unusable, match="belongs to somebody else"):
        record.found(model)


def test_a_link_or_a_folder_is_no_record(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    record.write(of(model), other)
    record.beside(model).symlink_to(other)
    with pytest.raises(Unusable, match="cannot be read"):
        record.found(model)
    record.beside(model).unlink()
    record.beside(model).mkdir()
    with pytest.raises(Unusable, match="not a regular file"):
        record.found(model)


def test_a_huge_record_is_not_read(model: Path) -> None:
    record.beside(model).write_bytes(b" " * (record._MOST_BYTES + 1))
    with pytest.raises(Unusable, match="not a regular file of at most"):
        record.found(model)
