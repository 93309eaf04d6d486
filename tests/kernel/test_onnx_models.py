"""ONNX models: dtypes, optional inputs, and the files that models come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import teal

pytest.importorskip("onnxruntime")


# ---- dtypes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"],
)
def test_plain_dtypes(load: Any, onnx_model: Any, name: str) -> None:
    kind = {"float32": "float", "float64": "double"}.get(name, name)
    model = load(
        onnx_model(
            f"""g ({kind}[N] x) => ({kind}[N] y, {kind}[M] z)
            {{ y = Identity(x)  s = Constant <value_ints = [-1]> ()  z = Reshape(x, s) }}"""
        )
    )
    assert model.inputs[0].dtype == name
    x = np.arange(5).astype(name)
    y, z = model(x)
    assert (y.dtype, z.dtype) == (name, name)
    assert np.array_equal(y.numpy(), x)
    assert np.array_equal(z.numpy(), x)


@pytest.mark.parametrize("known", [True, False], ids=["planned", "unplanned"])
@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        ("float16", "float16", 10),
        ("bfloat16", "bfloat16", 16),
        ("float8_e4m3fn", "float8e4m3fn", 17),
        ("float8_e5m2", "float8e5m2", 19),
    ],
)
def test_narrow_floats(load: Any, onnx_model: Any, name: str, kind: str, number: int, known: bool) -> None:
    """float32 → narrow → float32, with the narrow one as output and as input."""
    extent = "N" if known else "M"
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    values = np.array([0, 1, -1.5, 3.25, 100, 448, 1e-3, -0.0], np.float32)
    narrow = load(
        onnx_model(f"g (float[N] x) => ({kind}[{extent}] y) {{ y = Cast <to = {number}> (x) }}", "narrow", check=False)
    )
    assert narrow.outputs[0].dtype == name
    for repeat in (1, 1000):
        x = np.tile(values, repeat)
        (y,) = narrow(x)
        assert (y.dtype, y.shape) == (name, x.shape)
        assert y.numpy().tobytes() == x.astype(dtype).tobytes()
    wide = load(onnx_model(f"g ({kind}[N] x) => (float[{extent}] y) {{ y = Cast <to = 1> (x) }}", "wide", check=False))
    assert np.array_equal(
        wide(values.astype(dtype))[0].numpy(), values.astype(dtype).astype(np.float32), equal_nan=True
    )
    assert np.array_equal(wide(narrow(values)[0])[0].numpy(), values.astype(dtype).astype(np.float32), equal_nan=True)


def test_dtypes_that_are_not_teals(host: teal.Host, onnx_model: Any) -> None:
    with pytest.raises(teal.KernelFailed, match=r"'x' is a tensor\(int4\); Teal passes tensors of BYTES, .*float64"):
        host.load("int4", onnx_model("g (int4[N] x) => (float[N] y) { y = Cast <to = 1> (x) }"))
    with pytest.raises(teal.KernelFailed, match=r"'x' is a .*; Teal passes tensors of"):
        host.load("sequence", onnx_model("g (seq(float[N]) x) => (int64 y) { y = SequenceLength(x) }", "sequence"))


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("int64", "classlabels_int64s = [7, -2, 300]"),
        ("string", 'classlabels_strings = ["cat", "a dog", "é"]'),
    ],
)
def test_maps_are_rows_of_a_matrix(load: Any, onnx_model: Any, kind: str, labels: str) -> None:
    """What scikit-learn's classifiers are exported with: a label and a map from label to score for each row."""
    path = onnx_model(
        f"""g (float[N, 3] x) => (int64[N] best, seq(map({kind}, float)) scores)
        {{ best = ArgMax <axis = 1, keepdims = 0> (x)  scores = ai.onnx.ml.ZipMap <{labels}> (x) }}""",
        check=False,
        opset='"" : 21, "ai.onnx.ml" : 3',
    )
    model = load(path)
    assert model.outputs[1] == teal.TensorSpec("scores", "float32", (None, 3))
    assert not model.statistics().note  # which would say that something is not as it was asked for
    x = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    for rows in (4, 1, 0):
        answer = model(x[:rows])
        assert np.array_equal(answer["best"].numpy(), x[:rows].argmax(1))
        assert np.array_equal(answer["scores"].numpy(), x[:rows])


def test_maps_of_the_classifier_that_onnxruntime_brings(load: Any) -> None:
    ort = pytest.importorskip("onnxruntime")
    path = Path(ort.__file__).parent / "datasets" / "logreg_iris.onnx"
    x = np.array([[5.1, 3.5], [6.2, 2.9], [7.7, 3.0]], np.float32)
    best, maps = ort.InferenceSession(path).run(None, {"float_input": x})
    rows = np.array([[scores[label] for label in (0, 1, 2)] for scores in maps], np.float32)
    answer = load(path)(x)
    assert np.array_equal(answer["label"].numpy(), best)
    assert np.array_equal(answer["probabilities"].numpy(), rows)


# ---- optional inputs -----------------------------------------------------------------------------------------------


def test_inputs_with_a_default(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (float[N] x, float[1] scale = {3}) => (float[N] y) { y = Mul(x, scale) }"))
    assert model.inputs == (
        teal.TensorSpec("x", "float32", ("N",)),
        teal.TensorSpec("scale", "float32", (1,), optional=True),
    )
    x = np.ones(2, np.float32)
    for _ in range(2):
        assert model(x)["y"].numpy().tolist() == [3, 3]
        assert model(x, scale=[5])["y"].numpy().tolist() == [5, 5]
    inputs = model.new_inputs(N=2, scale=(1,))
    inputs["x"].numpy()[...], inputs["scale"].numpy()[...] = 1, 7
    assert model(**inputs)[0].numpy().tolist() == [7, 7]


def test_weights_listed_as_inputs_stay_constants(load: Any, onnx_model: Any) -> None:
    weights = ", ".join(f"float[1] w{i} = {{{i}}}" for i in range(20))
    chain = "  ".join(f"t{i + 1} = Add(t{i}, w{i})" for i in range(20)).replace("t0,", "x,").replace("t20", "y")
    model = load(onnx_model(f"g (float[N] x, {weights}) => (float[N] y) {{ {chain} }}"))
    assert [spec.name for spec in model.inputs] == ["x"]
    assert model(np.zeros(1, np.float32))[0].numpy().tolist() == [sum(range(20))]


# ---- files ---------------------------------------------------------------------------------------------------------


def test_data_in_a_file_beside_the_model(load: Any, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    weights = np.arange(4096, dtype=np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [4096])],
        [onnx.helper.make_tensor_value_info("y", 1, [4096])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    folder = tmp_path / "folder with spaces"
    folder.mkdir()
    onnx.save_model(model, folder / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=16)
    assert (folder / "big.data").stat().st_size >= weights.nbytes
    loaded = load(folder / "big.onnx")
    assert np.array_equal(loaded(np.zeros(4096, np.float32))[0].numpy(), weights)
    (folder / "big.data").rename(folder / "gone.data")
    with pytest.raises(teal.InvalidArgument, match=r"big.onnx: not a model onnxruntime can load: .*big\.data"):
        load(folder / "big.onnx")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda data: b"", "the file of 'spoilt' is empty"),
        (lambda data: data[: len(data) // 2], "not a model onnxruntime can load"),
        (lambda data: b"\x00" * 100, "not a model onnxruntime can load"),
        (lambda data: b"#!/bin/sh\n", "not a model onnxruntime can load"),
        (lambda data: data.replace(b"Gemm", b"Gone"), "not a model onnxruntime can load"),
    ],
)
def test_files_that_are_no_models(
    host: teal.Host, mlp_path: Path, tmp_path: Path, spoil: Callable[[bytes], bytes], complaint: str
) -> None:
    spoilt = spoil(mlp_path.read_bytes())
    path = tmp_path / "spoilt.onnx"
    path.write_bytes(spoilt)
    assert spoilt != mlp_path.read_bytes()
    with pytest.raises(teal.InvalidArgument, match=complaint):
        host.load("spoilt", path)
    assert all(info.name != "spoilt" for info in host.models())


def test_paths(host: teal.Host, tmp_path: Path) -> None:
    for path, error, complaint in (
        (tmp_path / "none.onnx", teal.NotFound, "No such file"),
        (tmp_path / "folder.onnx", teal.InvalidArgument, "not a regular file"),
        (Path("/dev/null"), teal.InvalidArgument, r"\$\.source"),
    ):
        (tmp_path / "folder.onnx").mkdir(exist_ok=True)
        with pytest.raises(error, match=complaint):
            host.load("path", path)
    with pytest.raises(teal.InvalidArgument, match="NUL"):
        host.load("path", "a\0b.onnx")


def test_what_is_known_of_a_file(load: Any, mlp_path: Path) -> None:
    import hashlib

    info = load(mlp_path).info
    data = mlp_path.read_bytes()
    assert (info.bytes, info.digest) == (len(data), hashlib.sha256(data).hexdigest())
    assert (info.kernel, info.source, info.pure, info.idempotent) == ("onnx", str(mlp_path), True, True)


def test_a_relative_path(load: Any, mlp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mlp_path.parent)
    assert load("mlp.onnx")(np.zeros((1, 64), np.float32))[0].shape == (1, 8)


def test_failures_inside_the_engine(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (float[N] x, int64[M] i) => (float[M] y) { y = Gather(x, i) }"))
    x = np.arange(3, dtype=np.float32)
    assert model(x, np.array([2, 0]))[0].numpy().tolist() == [2, 0]
    with pytest.raises(teal.KernelFailed, match=r"indices element out of data bounds"):
        model(x, np.array([3]))
    assert model(x, np.array([1]))[0].numpy().tolist() == [1]
