"""A real model, quantised to int8: Teal's answers are onnxruntime's, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

onnxruntime = pytest.importorskip("onnxruntime")

SHAPES = [(1, 16), (1, 128), (3, 7), (8, 32)]


@pytest.fixture(scope="module")
def minilm(host: teal.Host, minilm_path: Path) -> teal.Model:
    return host.load("minilm", minilm_path, threads=1)


@pytest.fixture(scope="module")
def engine(minilm_path: Path) -> Any:
    """The same model in this process, set up as Teal sets it up."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(minilm_path), options, providers=["CPUExecutionProvider"])


def sentences(model: teal.Model, batch: int, length: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(batch * 1000 + length)
    given = {spec.name: np.zeros((batch, length), spec.dtype) for spec in model.inputs}
    given["input_ids"][...] = random.integers(100, 30_000, (batch, length))
    given["attention_mask"][...] = 1
    given["attention_mask"][-1, length // 2 :] = 0
    return given


@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_answers_are_the_engines(minilm: teal.Model, engine: Any, batch: int, length: int) -> None:
    given = sentences(minilm, batch, length)
    expected = engine.run(None, given)
    out = minilm(**given)
    assert out.names == tuple(node.name for node in engine.get_outputs())
    for tensor, wanted in zip(out, expected, strict=True):
        assert tensor.shape == wanted.shape
        assert np.array_equal(tensor.numpy(), wanted)


@pytest.mark.parametrize(("batch", "length"), SHAPES)
def test_in_place_without_a_copy(minilm: teal.Model, engine: Any, counted: Any, batch: int, length: int) -> None:
    given = sentences(minilm, batch, length)
    names = {extent for spec in minilm.inputs for extent in spec.shape or () if isinstance(extent, str)}
    first = minilm.inputs[0].shape or ()
    extents = {name: (batch if name == first[0] else length) for name in names}
    x = minilm.new_inputs(**extents)
    before = counted(minilm)
    call = minilm.prepare(**x)
    for shift in (0, 1, 2):
        for name, tensor in x.items():
            tensor.numpy()[...] = given[name]
        x["input_ids"].numpy()[...] += shift
        expected = engine.run(None, {name: tensor.numpy() for name, tensor in x.items()})
        assert all(np.array_equal(t.numpy(), e) for t, e in zip(minilm(**x), expected, strict=True))
        assert all(np.array_equal(t.numpy(), e) for t, e in zip(call(), expected, strict=True))
    after = counted(minilm)
    assert (after.copies_in - before.copies_in, after.copies_out - before.copies_out) == (0, 0)


def test_missing_and_wrong_inputs(minilm: teal.Model) -> None:
    given = sentences(minilm, 1, 8)
    with pytest.raises(teal.InvalidArgument, match="input 'attention_mask' is missing"):
        minilm(input_ids=given["input_ids"])
    with pytest.raises(
        teal.InvalidArgument, match=r"\$\.inputs\[\d\]\.dtype: int32, input 'attention_mask' expects int64"
    ):
        minilm(**{**given, "attention_mask": given["attention_mask"].astype(np.int32)})
    with pytest.raises(teal.InvalidArgument, match="elsewhere in this call"):
        minilm(**{**given, "attention_mask": np.ones((1, 9), np.int64)})


def test_ids_outside_the_vocabulary(minilm: teal.Model) -> None:
    given = sentences(minilm, 1, 8)
    wrong = given["input_ids"].copy()
    wrong[0, 3] = 1 << 40
    with pytest.raises(teal.KernelFailed, match="out of data bounds"):
        minilm(**{**given, "input_ids": wrong})
    assert np.isfinite(minilm(**given)[0].numpy()).all()
