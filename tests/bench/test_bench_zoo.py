"""The models of `teal bench models`: their published sizes, their inputs, and a small one exported and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from teal.bench.rivals import zoo

PARAMETERS = {  # millions, as published
    "resnet50": 25.56,
    "efficientnet_b0": 5.29,
    "yolov8n": 3.16,
    "vit_b16": 86.57,
    "deit_s": 22.05,
    "distilbert": 66.96,
    "mlp": 0.00468,
}
OUTPUTS = {
    "resnet50": (2, 1000),
    "efficientnet_b0": (2, 1000),
    "yolov8n": (2, 84, 8400),
    "vit_b16": (2, 1000),
    "deit_s": (2, 1000),
    "distilbert": (2, 2),
    "tinyllama": (2, 32000),
    "minilm": (2, 384),
    "mlp": (2, 8),
}


@pytest.mark.parametrize("name", [name for name in zoo.ZOO if name != "minilm"])
def test_shapes_are_the_published_ones(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    entry = zoo.ZOO[name]
    with torch.device("meta"), torch.no_grad():
        module = entry.build(tmp_path).eval()
        arrays = entry.inputs(2, 0)
        given = [torch.empty(array.shape, dtype=torch.from_numpy(array[:1]).dtype) for array in arrays.values()]
        assert tuple(module(*given).shape) == OUTPUTS[name]
    if name in PARAMETERS:
        count = sum(parameter.numel() for parameter in module.parameters()) / 1e6
        assert count == pytest.approx(PARAMETERS[name], rel=0.005)


def test_a_full_tinyllama_has_its_parameters() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from teal.bench.rivals.nets.attention import TinyLlama

    with torch.device("meta"):
        module = TinyLlama(22)
    assert sum(parameter.numel() for parameter in module.parameters()) / 1e9 == pytest.approx(1.1, rel=0.002)


@pytest.mark.parametrize("name", zoo.ZOO)
def test_inputs_are_the_same_each_time_and_differ_by_seed(name: str) -> None:
    entry = zoo.ZOO[name]
    one, again, other = entry.inputs(2, 5), entry.inputs(2, 5), entry.inputs(2, 6)
    for key in one:
        assert np.array_equal(one[key], again[key])
        assert len(one[key]) == 2
    assert any(not np.array_equal(one[key], other[key]) for key in one)
    back = zoo.unflat(zoo.flat(one), one)
    assert all(np.array_equal(one[key], back[key]) for key in one)


def test_real_text_is_used_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(zoo.TEXT, "ids", None)
    ids = np.zeros((3, zoo.TOKENS), np.int64)
    ids[:, :5] = np.arange(15).reshape(3, 5) + 101
    np.save(tmp_path / "sentences.npy", ids)
    zoo.read_text(tmp_path)
    found = zoo.sentences(2, 1)
    assert np.array_equal(found["input_ids"], ids[[2, 0]])
    assert found["attention_mask"].sum() == 10


def test_a_model_is_exported_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("onnx", reason="needs onnx")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    from teal.bench.rivals import export

    entry = zoo.ZOO["mlp"]
    export.write(entry, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlp.onnx", "mlp.pt"]
    arrays = entry.inputs(3, 1)
    (out,) = onnxruntime.InferenceSession(tmp_path / "mlp.onnx").run(None, arrays)
    with torch.inference_mode():
        own = export.read(entry, tmp_path)(*export.as_tensors(arrays)).numpy()
    assert np.allclose(out, own, atol=1e-5)


def test_calibration_keeps_a_network_with_random_weights_alive() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from teal.bench.rivals import export
    from teal.bench.rivals.nets.convolutional import Bottleneck

    torch.manual_seed(1)
    module = torch.nn.Sequential(Bottleneck(64, 16, 1), Bottleneck(64, 16, 1))

    def inputs(batch: int, seed: int) -> zoo.Arrays:
        return {"image": 100 * np.random.default_rng(seed).standard_normal((batch, 64, 8, 8), dtype=np.float32)}

    export.calibrate(module, zoo.Entry("toy", "toy", inputs, lambda _: module))
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            assert part.running_var.min() > 0
            assert not torch.equal(part.running_var, torch.ones_like(part.running_var))
    assert not module.training
