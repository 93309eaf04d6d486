"""Models through OpenVINO: in place, and float32 means float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

ov = pytest.importorskip("openvino")


@pytest.fixture(scope="session")
def ir_path(mlp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The perceptron as OpenVINO writes it."""
    path = tmp_path_factory.mktemp("ir") / "mlp.xml"
    ov.save_model(ov.Core().read_model(mlp_path), path, compress_to_fp16=False)
    return path


def expected(path: Path, *given: Any) -> list[Any]:
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [np.array(each) for each in compiled(list(given)).values()]


@pytest.mark.parametrize("kind", ["onnx", "ir"])
def test_signature_and_zero_copies(load: Any, counted: Any, mlp_path: Path, ir_path: Path, kind: str) -> None:
    path = mlp_path if kind == "onnx" else ir_path
    model = load(path, kernel="openvino")
    batch = "batch"
    assert (model.inputs[0].shape, model.outputs[0].shape) == ((batch, 64), (batch, 8))
    info = model.info
    assert (info.kernel, info.precision) == ("openvino", "fp32")
    assert info.engine.startswith("openvino 20")
    x = model.new_inputs(**{batch: 7})
    before = counted(model)
    for seed in range(20):
        x["x"].numpy()[...] = np.random.default_rng(seed).random((7, 64), np.float32)
        (out,) = model(**x)
        assert np.allclose(out.numpy(), expected(path, x["x"].numpy())[0], atol=1e-6)
    after = counted(model)
    assert (after.copies_in, after.copies_out) == (before.copies_in, before.copies_out)
    assert after.bindings - before.bindings <= 2
