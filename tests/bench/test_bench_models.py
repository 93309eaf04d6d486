"""The models that the benches run."""

from __future__ import annotations

import random
import runpy
from array import array
from pathlib import Path

import pytest

from teal.bench import models
from teal.bench.rivals import work


def test_mlp_file_is_what_its_script_makes() -> None:
    script = models.mlp().with_name("make_mlp.py")
    assert runpy.run_path(str(script))["model"]() == models.mlp().read_bytes()


def test_mlp_computes_what_its_weights_say() -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    numpy = pytest.importorskip("numpy")
    session = onnxruntime.InferenceSession(str(models.mlp()))
    x = numpy.frombuffer(work.mlp_input(), numpy.float32).reshape(1, -1)
    (y,) = session.run(None, {"x": numpy.repeat(x, 3, axis=0)})
    numbers = random.Random(20)
    w1, b1, w2, b2 = (
        numpy.array([(2 * numbers.random() - 1) / 8 for _ in range(rows * columns)]).reshape(rows, columns)
        for rows, columns in ((64, 64), (1, 64), (64, 8), (1, 8))
    )
    expected = numpy.maximum(x @ w1 + b1, 0) @ w2 + b2
    assert y.shape == (3, 8)
    assert numpy.allclose(y, expected, atol=1e-5)


def test_minilm_is_found_only_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MINILM_PACKAGE", "no_such_package_of_models")
    assert models.minilm() is None
    package = tmp_path / "made_up_minilm"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(models, "MINILM_PACKAGE", "made_up_minilm")
    assert models.minilm() is None
    (package / "model.onnx").touch()
    assert models.minilm() == package / "model.onnx"


def test_work_is_the_same_for_all() -> None:
    assert [len(work.payload(nbytes)) for nbytes in work.SIZES.values()] == list(work.SIZES.values())
    assert 0 not in work.payload(work.LARGE)
    numbers = array("f", work.mlp_input())
    assert (len(numbers), min(numbers), max(numbers) < 1) == (work.MLP_IN, -1, True)
    assert len(set(work.token_ids())) == work.TOKENS
