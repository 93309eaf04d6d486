"""ONNX models through onnxruntime: in place where the shapes are known, right where they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import teal

onnxruntime = pytest.importorskip("onnxruntime")


def copies(model: teal.Model) -> tuple[int, int]:
    while (numbers := model.statistics()).in_flight:  # a worker counts just after it has answered
        pass
    return numbers.copies_in, numbers.copies_out


# ---- shapes ----------------------------------------------------------------------------------------------------------


def test_signature_and_symbolic_shapes(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (float[N, 4] x, float[N, M] z) => (float[N, P] y) { y = Concat <axis = 1> (x, z) }"))
    assert model.inputs == (teal.TensorSpec("x", "float32", ("N", 4)), teal.TensorSpec("z", "float32", ("N", "M")))
    assert [(spec.name, spec.shape[0]) for spec in model.outputs] == [("y", "N")]
    for n, m in ((1, 1), (3, 5), (2, 0)):
        x, z = np.ones((n, 4), np.float32), np.full((n, m), 2, np.float32)
        assert np.array_equal(model(x=x, z=z)["y"].numpy(), np.concatenate([x, z], 1))
    with pytest.raises(teal.InvalidArgument, match=r"\$\.inputs\[1\]\.shape\[0\]: 3, but 'N' is 2 elsewhere"):
        model(x=np.ones((2, 4), np.float32), z=np.ones((3, 1), np.float32))


def test_zero_copies(load: Any, mlp_path: Path) -> None:
    model = load(mlp_path)
    engine = onnxruntime.InferenceSession(str(mlp_path), providers=["CPUExecutionProvider"])
    x = model.new_inputs(batch=7)
    before = copies(model)
    random = np.random.default_rng(0)
    for _ in range(20):
        given = random.random((7, 64), np.float32)
        x["x"].numpy()[...] = given
        (out,) = model(**x)
        assert np.array_equal(out.numpy(), engine.run(None, {"x": given})[0])
    assert copies(model) == before
    model(given)
    assert copies(model) == (before[0] + 1, before[1])


def test_bindings_are_made_once_a_slot(load: Any, mlp_path: Path) -> None:
    model = load(mlp_path)
    x = np.ones((2, 64), np.float32)
    model(x)
    assert model.statistics().bindings == 1
    for _ in range(100):
        model(x)
    assert model.statistics().bindings == 1
    held = model(x)
    model(x)
    assert model.statistics().bindings == 2
    del held
    for _ in range(50):
        model(x)
    inputs = model.new_inputs(batch=2)
    for _ in range(50):
        model(**inputs)
    assert model.statistics().bindings <= 3


def test_scalars_and_empty_tensors(load: Any, onnx_model: Any) -> None:
    scalar = load(onnx_model("g (float x, int64 k) => (float y, int64 j) { y = Neg(x)  j = Abs(k) }"))
    y, j = scalar(2.5, -3)
    assert (y.shape, float(y.numpy()), j.shape, int(j.numpy())) == ((), -2.5, (), 3)
    assert [tensor.shape for tensor in scalar.new_inputs().values()] == [(), ()]
    empty = load(onnx_model("g (float[N, M] x) => (float[N, M] y, float[N] s) { y = Neg(x)  a = Constant <value_ints = [1]> ()  s = ReduceSum <keepdims = 0> (x, a) }", "empty"))
    for shape in ((0, 3), (3, 0), (0, 0), (2, 2)):
        x = np.ones(shape, np.float32)
        y, s = empty(x)
        assert (y.shape, s.shape) == (shape, shape[:1])
        assert np.array_equal(s.numpy(), x.sum(1))


def test_any_rank(load: Any, onnx_model: Any) -> None:
    """An input without a declared shape takes every shape."""
    model = load(onnx_model("g (float[] x, float s) => (float[] y) { y = Mul(x, s) }", check=False))
    assert [spec.shape for spec in model.inputs] == [None, ()]
    for shape in ((), (3,), (2, 1, 2), (0,)):
        x = np.full(shape, 2, np.float32)
        assert np.array_equal(model(x, -1.0)[0].numpy(), -x)
        assert model(x, 1.0)[0].shape == shape
    assert model.new_inputs(x=(2, 2))["x"].shape == (2, 2)
    with pytest.raises(teal.InvalidArgument, match="rank 1, input 's' expects rank 0"):
        model(x, np.ones(1, np.float32))


def test_unnamed_dimensions(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (float[?, 3] x) => (float[?, 3] y) { y = Neg(x) }"))
    assert model.inputs[0].shape == (None, 3)
    assert model(np.ones((5, 3), np.float32))[0].shape == (5, 3)
    assert model.new_inputs(x=(4, 3))["x"].shape == (4, 3)
    with pytest.raises(teal.InvalidArgument, match=r"give x="):
        model.new_inputs()


@pytest.mark.parametrize("threads", [1, 2])
def test_several_inputs_and_outputs(load: Any, onnx_model: Any, threads: int) -> None:
    model = load(
        onnx_model(
            """g (float[N] a, int64[N] b, bool[N] c) => (float[N] sum, bool[N] any, int64[1] size)
            { f = Cast <to = 1> (b)  sum = Add(a, f)  z = Constant <value_int = 0> ()  p = Greater(b, z)  any = Or(p, c)  size = Shape(a) }"""
        ),
        threads=threads,
    )
    out = model(a=np.array([1, 2], np.float32), b=np.array([-1, 5]), c=np.array([True, False]))
    assert {name: tensor.numpy().tolist() for name, tensor in out.items()} == {"sum": [0, 7], "any": [True, True], "size": [2]}
    assert out.names == ("sum", "any", "size")
    assert out["size"].address == out[2].address
    with pytest.raises(teal.NotFound, match=r"output 'none'; the outputs are \['sum', 'any', 'size'\]"):
        out["none"]


# ---- outputs that cannot be planned -----------------------------------------------------------------------------------


def test_nonzero_small_then_huge_then_planned(load: Any, onnx_model: Any, counted: Any) -> None:
    model = load(onnx_model("g (float[N] x) => (int64[one, M] y) { y = NonZero(x) }"))
    one, huge = np.zeros(300_000, np.float32), np.ones(300_000, np.float32)
    one[7] = 1
    assert model(one)[0].numpy().tolist() == [[7]]
    for attempt in range(3):
        (out,) = model(huge)
        assert np.array_equal(out.numpy(), np.arange(300_000)[None])
        (small,) = model(one)
        assert small.numpy().tolist() == [[7]]
        numbers = counted(model)
        # The first huge one comes in a region of its own; from then on there is room for it in the slot.
        assert numbers.copies_out == 2 * attempt + 3
    x = model.new_inputs(N=300_000)
    x["x"].numpy()[...] = huge
    assert model(**x)[0].shape == (1, 300_000)


def test_unique_has_four_outputs_of_unknown_size(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (int64[N] x) => (int64[A] y, int64[B] i, int64[C] j, int64[D] n) { y, i, j, n = Unique <sorted = 1> (x) }"))
    for length in (0, 5, 5000, 100_000):
        x = np.random.default_rng(length).integers(0, length // 2 + 1, length)
        expected = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
        for _ in range(2):
            for out, wanted in zip(model(x), expected, strict=True):
                assert np.array_equal(out.numpy(), wanted)


def test_known_and_unknown_outputs_together(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (float[N] x) => (float[N] y, int64[1, M] z, float s) { y = Neg(x)  z = NonZero(x)  s = ReduceSum <keepdims = 0> (x) }"))
    for n in (3, 20_000, 3):
        x = np.ones(n, np.float32)
        for _ in range(2):
            y, z, s = model(x)
            assert (y.shape, z.shape, float(s.numpy())) == ((n,), (1, n), n)
            assert np.array_equal(y.numpy(), -x)


LIES = {
    "flattens": ("float[batch, 4] x", "float[batch] y", "{ s = Constant <value_ints = [-1]> ()  y = Reshape(x, s) }", lambda x: x.reshape(-1)),
    "turns": ("float[batch, seq] x", "float[batch, seq] y", "{ y = Transpose <perm = [1, 0]> (x) }", lambda x: x.T),
    "grows": ("float[batch, n] x", "float[batch, n] y", "{ y = Concat <axis = 1> (x, x, x) }", lambda x: np.concatenate([x, x, x], 1)),
    "shrinks": ("float[batch, n] x", "float[batch, n] y", "{ a = Constant <value_ints = [1]> ()  y = ReduceSum(x, a) }", lambda x: x.sum(1, keepdims=True)),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_signature_that_lies(load: Any, onnx_model: Any, lie: str) -> None:
    given, promised, body, right = LIES[lie]
    model = load(onnx_model(f"g ({given}) => ({promised}) {body}", check=False))
    for rows in (2, 3, 700, 2):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        for _ in range(3):
            assert np.array_equal(model(x)[0].numpy(), right(x))
    inputs = model.new_inputs(x=(5, 4))
    inputs["x"].numpy()[...] = np.arange(20).reshape(5, 4)
    kept = [model(**inputs)[0] for _ in range(3)]
    assert all(np.array_equal(out.numpy(), right(inputs["x"].numpy())) for out in kept)
    assert model.statistics().failed == 0
    if lie != "shrinks":  # onnxruntime finds that one out when it loads the model
        assert copies(model)[1] > 0  # the price, and it shows


# ---- strings ---------------------------------------------------------------------------------------------------------


def test_strings_in_and_out(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (string[N, M] x) => (string[N, M] y, string[K] z) { y = Identity(x)  s = Constant <value_ints = [-1]> ()  z = Reshape(x, s) }"))
    assert [spec.dtype for spec in model.inputs + model.outputs] == ["BYTES"] * 3
    for given in ([["a", "grün 日本"], ["", "x" * 3000]], [["x" * 10_000]], np.zeros((0, 3), "U1"), [["a", "b"]]):
        expected = [[text.encode() for text in row] for row in given]
        y, z = model(given)
        assert y.numpy().tolist() == expected
        assert z.numpy().tolist() == [text for row in expected for text in row]
    before = copies(model)
    model([["a"]])
    assert copies(model) == (before[0] + 2, before[1] + 2)  # packed here, decoded there; both outputs packed


def test_strings_beside_numbers(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (string[N] x, float[N] k) => (bool[N] same, float[N] y) { same = Equal(x, x)  y = Neg(k) }"))
    same, y = model(["a", "b"], np.array([1, 2], np.float32))
    assert (same.numpy().tolist(), y.numpy().tolist()) == ([True, True], [-1, -2])
    with pytest.raises(teal.InvalidArgument, match="strings cannot be filled in place"):
        model.new_inputs(N=2)


def test_numbers_to_strings(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (int64[N] x) => (string[N] y) { y = Cast <to = 8> (x) }"))
    assert model(np.array([1, -20]))[0].numpy().tolist() == [b"1", b"-20"]
    many = np.arange(3000)
    assert model(many)[0].numpy().tolist() == [str(i).encode() for i in range(3000)]


def test_bytes_that_are_no_text(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (string[N] x) => (string[N] y) { y = Identity(x) }"))
    with pytest.raises(teal.KernelFailed):
        model([b"\xff\xfe"])
    assert model([b"good"])[0].numpy().tolist() == [b"good"]


# ---- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"],
)
def test_plain_dtypes(load: Any, onnx_model: Any, name: str) -> None:
    kind = {"float32": "float", "float64": "double"}.get(name, name)
    model = load(onnx_model(f"g ({kind}[N] x) => ({kind}[N] y, {kind}[M] z) {{ y = Identity(x)  s = Constant <value_ints = [-1]> ()  z = Reshape(x, s) }}"))
    assert model.inputs[0].dtype == name
    x = np.arange(5).astype(name)
    y, z = model(x)
    assert (y.dtype, z.dtype) == (name, name)
    assert np.array_equal(y.numpy(), x)
    assert np.array_equal(z.numpy(), x)


@pytest.mark.parametrize("known", [True, False], ids=["planned", "unplanned"])
@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [("float16", "float16", 10), ("bfloat16", "bfloat16", 16), ("float8_e4m3fn", "float8e4m3fn", 17), ("float8_e5m2", "float8e5m2", 19)],
)
def test_narrow_floats(load: Any, onnx_model: Any, name: str, kind: str, number: int, known: bool) -> None:
    """float32 → narrow → float32, with the narrow one as output and as input."""
    extent = "N" if known else "M"
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    values = np.array([0, 1, -1.5, 3.25, 100, 448, 1e-3, -0.0], np.float32)
    narrow = load(onnx_model(f"g (float[N] x) => ({kind}[{extent}] y) {{ y = Cast <to = {number}> (x) }}", "narrow", check=False))
    assert narrow.outputs[0].dtype == name
    for repeat in (1, 1000):
        x = np.tile(values, repeat)
        (y,) = narrow(x)
        assert (y.dtype, y.shape) == (name, x.shape)
        assert y.numpy().tobytes() == x.astype(dtype).tobytes()
    wide = load(onnx_model(f"g ({kind}[N] x) => (float[{extent}] y) {{ y = Cast <to = 1> (x) }}", "wide", check=False))
    assert np.array_equal(wide(values.astype(dtype))[0].numpy(), values.astype(dtype).astype(np.float32), equal_nan=True)
    assert np.array_equal(wide(narrow(values)[0])[0].numpy(), values.astype(dtype).astype(np.float32), equal_nan=True)


def test_dtypes_that_are_not_teals(host: teal.Host, onnx_model: Any) -> None:
    with pytest.raises(teal.KernelFailed, match=r"'x' is a tensor\(int4\); Teal passes tensors of BYTES, .*float64"):
        host.load("int4", onnx_model("g (int4[N] x) => (float[N] y) { y = Cast <to = 1> (x) }"))
    with pytest.raises(teal.KernelFailed, match="'x' is a .*; Teal passes tensors of"):
        host.load("sequence", onnx_model("g (seq(float[N]) x) => (int64 y) { y = SequenceLength(x) }", "sequence"))


# ---- optional inputs -------------------------------------------------------------------------------------------------


def test_inputs_with_a_default(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (float[N] x, float[1] scale = {3}) => (float[N] y) { y = Mul(x, scale) }"))
    assert model.inputs == (teal.TensorSpec("x", "float32", ("N",)), teal.TensorSpec("scale", "float32", (1,), optional=True))
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


# ---- files ----------------------------------------------------------------------------------------------------------


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
def test_files_that_are_no_models(host: teal.Host, mlp_path: Path, tmp_path: Path, spoil: Callable[[bytes], bytes], complaint: str) -> None:
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
