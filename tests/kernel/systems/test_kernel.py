"""The loads as resident models: through a host, in place, replaced under load, and what is refused."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import systems_cases as cases

import teal
from teal.kernel.systems import LOADS, file

Save = Callable[..., Path]


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    """``saved(load, seed)``: the path of a model with random weights."""

    def save(load: str, seed: int = 0) -> Path:
        path = tmp_path / f"{load}-{seed}.safetensors"
        file.save(path, load, cases.weights(load, seed))
        return path

    return save


@pytest.mark.parametrize("load_name", LOADS)
def test_call(load: Callable[..., teal.Model], saved: Save, load_name: str) -> None:
    known = LOADS[load_name]
    path = saved(load_name)
    model = load(path)
    info = model.info
    assert (info.kernel, info.source, info.pure, info.idempotent) == ("systems", str(path), True, True)
    assert info.bytes == path.stat().st_size
    assert [(s.name, s.dtype, s.shape) for s in info.inputs] == [("x", known.input, ("batch", known.columns))]
    assert [(s.name, s.dtype, s.shape) for s in info.outputs] == [
        ("scores", known.weights, ("batch", known.classes)),
        ("verdict", "int32", ("batch",)),
    ]
    for batch in (0, 1, 3, 32, 65):
        x = cases.inputs(load_name, batch, seed=batch)
        out = model(x)
        cases.check(load_name, cases.weights(load_name), x, out["scores"].numpy(), out["verdict"].numpy())


def test_in_place_and_prepared(load: Callable[..., teal.Model], saved: Save, counted: Callable[..., Any]) -> None:
    model = load(saved("linnos"))
    tensors = cases.weights("linnos")
    before = counted(model)
    given = model.new_inputs(x=(8, 31))
    call = model.prepare(**given)
    for seed in range(5):
        x = cases.inputs("linnos", 8, seed)
        given["x"].numpy()[:] = x
        out = call()
        cases.check("linnos", tensors, x, out["scores"].numpy(), out["verdict"].numpy())
    after = counted(model)
    for counter in ("copies_in", "copies_out", "bytes_copied"):
        assert getattr(after, counter) == getattr(before, counter)


def test_replaced_by_a_new_version(host: teal.Host, saved: Save) -> None:
    x = cases.inputs("mllb", 5)
    model = host.load("swap", saved("mllb", 1))
    for seed in (2, 3):
        host.load("swap", saved("mllb", seed))
        out = model(x)
        cases.check("mllb", cases.weights("mllb", seed), x, out["scores"].numpy(), out["verdict"].numpy())
    host.load("swap", saved("kml", 4))  # another load under the name: another signature
    again = host.model("swap")
    x = cases.inputs("kml", 5)
    out = again(x)
    cases.check("kml", cases.weights("kml", 4), x, out["scores"].numpy(), out["verdict"].numpy())
    host.unload("swap")


@pytest.mark.parametrize("fork", [1, 2])
def test_the_file_may_change_afterwards(load: Callable[..., teal.Model], saved: Save, fork: int) -> None:
    """The host keeps a sealed copy: the file on disk may be cut off or removed under a resident model."""
    path = saved("kml")
    model = load(path)
    x = cases.inputs("kml", 9)
    before = model(x)["scores"].numpy().copy()
    if fork == 1:
        os.truncate(path, 3)
    else:
        path.unlink()
    np.testing.assert_array_equal(model(x)["scores"].numpy(), before)


def test_wrong_calls(load: Callable[..., teal.Model], saved: Save) -> None:
    model = load(saved("mllb"))
    for x, words in (
        (np.zeros((2, 14), np.float32), r"\$\.inputs\[0\]\.shape\[1\]: 14, input 'x' expects 15"),
        (np.zeros((2, 15)), r"\$\.inputs\[0\]\.dtype: float64, input 'x' expects float32"),
        (np.zeros(15, np.float32), r"rank 1, input 'x' expects rank 2"),
    ):
        with pytest.raises(teal.InvalidArgument, match=words):
            model(x)
    linnos = load(saved("linnos"))
    with pytest.raises(teal.InvalidArgument, match="int64, input 'x' expects uint8"):
        linnos(np.zeros((1, 31), np.int64))


def test_refused_files(host: teal.Host, tmp_path: Path, saved: Save) -> None:
    path = tmp_path / "bad.safetensors"
    contents = saved("mllb").read_bytes()
    for bad, words in (
        (b"", "is empty"),
        (b"hello", r"bad\.safetensors: not a safetensors file: 5 bytes"),
        (contents[:-4], r"bad\.safetensors: the tensors take 684 bytes, the file has 680 of data"),
        (contents.replace(b'"mllb"', b'"nope"'), "teal.load: 'nope', expected one of"),
        (contents[:-4] + np.float32(np.nan).tobytes(), "tensor 'w1': element 9 is not finite"),
    ):
        path.write_bytes(bad)
        with pytest.raises(teal.InvalidArgument, match=words):
            host.load("bad", path)
    with pytest.raises(teal.NotFound):
        host.load("bad", tmp_path / "missing.safetensors")
    assert "bad" not in {info.name for info in host.models()}


def test_no_settings_are_ignored(host: teal.Host, saved: Save) -> None:
    path = saved("mllb")
    for settings in ({"threads": 2}, {"options": {"fast": "1"}}):
        with pytest.raises(teal.InvalidArgument, match="a systems load has no options and runs in one thread"):
            host.load("bad", path, **settings)
    with pytest.raises(teal.InvalidArgument):
        host.load("bad", path, kernel="onnx")
    host.load("good", path, threads=1)
    host.unload("good")


def test_any_suffix_when_the_kind_is_said(load: Callable[..., teal.Model], saved: Save, tmp_path: Path) -> None:
    path = saved("kml").rename(tmp_path / "weights.bin")
    x = cases.inputs("kml", 2)
    out = load(path, kernel="systems")(x)
    cases.check("kml", cases.weights("kml"), x, out["scores"].numpy(), out["verdict"].numpy())


def test_by_name_in_a_repository(saved: Save, tmp_path: Path) -> None:
    for folder, load, seed in (("warm/1", "kml", 1), ("warm/2", "kml", 2), ("slow", "mllb", 3)):
        (tmp_path / "models" / folder).mkdir(parents=True)
        saved(load, seed).rename(tmp_path / "models" / folder / "model.safetensors")
    with teal.Host(f"repository-{uuid.uuid4().hex[:12]}", repository=tmp_path / "models") as host:
        for name, load, seed in (("warm", "kml", 2), ("slow", "mllb", 3)):
            x = cases.inputs(load, 4)
            out = host.load(name)(x)
            cases.check(load, cases.weights(load, seed), x, out["scores"].numpy(), out["verdict"].numpy())
