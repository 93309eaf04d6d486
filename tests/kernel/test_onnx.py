"""ONNX models through onnxruntime: in place where the shapes are known, right where they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal
from teal.kernel.onnx import check_size

onnxruntime = pytest.importorskip("onnxruntime")


def copies(model: teal.Model) -> tuple[int, int]:
    while (numbers := model.statistics()).in_flight:  # a worker counts just after it has answered
        pass
    return numbers.copies_in, numbers.copies_out


# ---- shapes --------------------------------------------------------------------------------------------------------


def test_signature_and_symbolic_shapes(load: Any, onnx_model: Any) -> None:
    model = load(onnx_model("g (float[N, 4] x, float[N, M] z) => (float[N, P] y) { y = Concat <axis = 1> (x, z) }"))
    assert model.inputs == (teal.TensorSpec("x", "float32", ("N", 4)), teal.TensorSpec("z", "float32", ("N", "M")))
    assert [(spec.name, spec.shape[0]) for spec in model.outputs] == [("y", "N")]
    for n, m in ((1, 1), (3, 5), (2, 0)):
        x, z = np.ones((n, 4), np.float32), np.full((n, m), 2, np.float32)
        assert np.array_equal(model(x=x, z=z)["y"].numpy(), np.concatenate([x, z], 1))
    with pytest.raises(teal.InvalidArgument, match=r"\$\.inputs\[1\]\.shape\[0\]: 3, but 'N' is 2 elsewhere"):
        model(x=np.ones((2, 4), np.float32), z=np.ones((3, 1), np.float32))


def test_a_question_mark_is_no_name(load: Any, onnx_model: Any) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx")
    path = onnx_model("g (float[N, A, B] x) => (float[N, A, B] y) { y = Neg(x) }")
    model = onnx.load(path)
    for extent in model.graph.input[0].type.tensor_type.shape.dim[1:]:
        extent.dim_param = "?"  # as Paddle writes what it does not know
    onnx.save(model, path)
    loaded = load(path)
    assert loaded.inputs[0].shape == ("N", None, None)
    assert loaded(np.ones((2, 3, 4), np.float32))[0].shape == (2, 3, 4)


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
    empty = load(
        onnx_model(
            """g (float[N, M] x) => (float[N, M] y, float[N] s)
            { y = Neg(x)  a = Constant <value_ints = [1]> ()  s = ReduceSum <keepdims = 0> (x, a) }""",
            "empty",
        )
    )
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
            { f = Cast <to = 1> (b)  sum = Add(a, f)  z = Constant <value_int = 0> ()
              p = Greater(b, z)  any = Or(p, c)  size = Shape(a) }"""
        ),
        threads=threads,
    )
    out = model(a=np.array([1, 2], np.float32), b=np.array([-1, 5]), c=np.array([True, False]))
    assert {name: tensor.numpy().tolist() for name, tensor in out.items()} == {
        "sum": [0, 7],
        "any": [True, True],
        "size": [2],
    }
    assert out.names == ("sum", "any", "size")
    assert out["size"].address == out[2].address
    with pytest.raises(teal.NotFound, match=r"output 'none'; the outputs are \['sum', 'any', 'size'\]"):
        out["none"]


# ---- outputs that cannot be planned --------------------------------------------------------------------------------


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


def test_unknown_extents_are_written_in_place(load: Any, onnx_model: Any) -> None:
    """Once it is known how large they are: also for inputs that were made before it was."""
    graph = "g (float[batch, 2304] x) => (float[batch, Concaty_dim_1] y) { y = Concat <axis = 1> (x, x) }"
    model = load(onnx_model(graph))
    x = model.new_inputs(batch=128)
    for number in range(3):  # comes in a region of its own; is copied into its slot; is written there
        x["x"][:] = number
        (y,) = model(**x)
        assert np.array_equal(y.numpy(), np.full((128, 4608), number, np.float32))
        del y
    before = copies(model)
    for number in range(4):
        x["x"][:] = number
        (y,) = model(**x)
        assert np.array_equal(y.numpy(), np.full((128, 4608), number, np.float32))
        del y
    assert copies(model) == before
    (small,) = model(np.ones((2, 2304), np.float32))
    assert small.shape == (2, 4608)


def test_a_prepared_call_goes_on_in_a_larger_slot(load: Any, onnx_model: Any) -> None:
    """Inputs are read where they were prepared, whether given in place or as an array."""
    graph = "g (float[batch, 2304] x) => (float[batch, Concaty_dim_1] y) { y = Concat <axis = 1> (x, x) }"
    model = load(onnx_model(graph))
    x = model.new_inputs(batch=128)
    array = np.full((96, 2304), 7, np.float32)
    in_place, copied = model.prepare(**x), model.prepare(array)
    before = (0, 0)
    for number in range(8):
        if number == 4:  # once they have learned, been copied, and been written in place
            before = copies(model)
        x["x"][:] = number
        for call, rows, wanted in ((in_place, 128, number), (copied, 96, 7)):
            (y,) = call()
            assert np.array_equal(y.numpy(), np.full((rows, 4608), wanted, np.float32))
            del y
    assert copies(model) == before


def test_an_output_that_is_not_as_last_time(load: Any, onnx_model: Any) -> None:
    """The same shapes in, others out: what was expected of it is given up, and every answer is right."""
    model = load(onnx_model("g (float[N] x) => (int64[one, M] y) { y = NonZero(x) }"))
    generator = np.random.default_rng(7)
    for count in (5, 5, 5, 9, 0, 9, 9, 5, 5):
        x = np.zeros(64, np.float32)
        x[generator.choice(64, count, replace=False)] = 1
        (y,) = model(x)
        assert np.array_equal(np.asarray(y), np.nonzero(x))


def test_unique_has_four_outputs_of_unknown_size(load: Any, onnx_model: Any) -> None:
    model = load(
        onnx_model(
            """g (int64[N] x) => (int64[A] y, int64[B] i, int64[C] j, int64[D] n)
            { y, i, j, n = Unique <sorted = 1> (x) }"""
        )
    )
    for length in (0, 5, 5000, 100_000):
        x = np.random.default_rng(length).integers(0, length // 2 + 1, length)
        expected = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
        for _ in range(2):
            for out, wanted in zip(model(x), expected, strict=True):
                assert np.array_equal(out.numpy(), wanted)


def test_known_and_unknown_outputs_together(load: Any, onnx_model: Any) -> None:
    model = load(
        onnx_model(
            """g (float[N] x) => (float[N] y, int64[1, M] z, float s)
            { y = Neg(x)  z = NonZero(x)  s = ReduceSum <keepdims = 0> (x) }"""
        )
    )
    for n in (3, 20_000, 3):
        x = np.ones(n, np.float32)
        for _ in range(2):
            y, z, s = model(x)
            assert (y.shape, z.shape, float(s.numpy())) == ((n,), (1, n), n)
            assert np.array_equal(y.numpy(), -x)


# name: (input, output as declared, body, what it really computes)
LIES: dict[str, tuple[str, str, str, Callable[[Any], Any]]] = {
    "flattens": (
        "float[batch, 4] x",
        "float[batch] y",
        "{ s = Constant <value_ints = [-1]> ()  y = Reshape(x, s) }",
        lambda x: x.reshape(-1),
    ),
    "turns": (
        "float[batch, seq] x",
        "float[batch, seq] y",
        "{ y = Transpose <perm = [1, 0]> (x) }",
        lambda x: x.T,
    ),
    "grows": (
        "float[batch, n] x",
        "float[batch, n] y",
        "{ y = Concat <axis = 1> (x, x, x) }",
        lambda x: np.concatenate([x, x, x], 1),
    ),
    "shrinks": (
        "float[batch, n] x",
        "float[batch, n] y",
        "{ a = Constant <value_ints = [1]> ()  y = ReduceSum(x, a) }",
        lambda x: x.sum(1, keepdims=True),
    ),
}


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


@pytest.mark.parametrize(("promised", "shape"), [("float[1]", ()), ("float", (1,)), ("float", (1, 1, 1))])
def test_one_element_has_the_shape_it_came_out_with(
    load: Any, onnx_model: Any, promised: str, shape: tuple[int, ...]
) -> None:
    """onnxruntime takes a buffer of one element for another shape of one element."""
    graph = f"g (float[N] x, int64[K] s) => ({promised} y, float[N] z) {{ y = Reshape(x, s)  z = Neg(x) }}"
    model = load(onnx_model(graph, check=False))
    x, wanted = np.array([7], np.float32), np.array(shape, np.int64)
    for _ in range(3):
        y, z = model(x, wanted)
        assert (y.shape, y.numpy().tolist()) == (shape, x.reshape(shape).tolist())
        assert z.numpy().tolist() == [-7]
    assert model.statistics().failed == 0


APART = {
    "an input": ("float[N] x, float[N] z", "float[N] x, float[N] y", "{ y = Add(x, z) }", ["x", "y"]),
    "one twice": ("float[N] x, float[N] z", "float[N] y, float[N] v, float[N] y",
                  "{ y = Add(x, z)  v = Sub(x, z) }", ["y", "v", "y"]),
    "an input of unknown size": ("float[N] x, float[N] z", "float[N] x, int64[1, K] k",
                                 "{ k = NonZero(z) }", ["x", "k"]),
}  # fmt: skip


@pytest.mark.parametrize("case", APART)
def test_outputs_that_are_not_written_anywhere(load: Any, onnx_model: Any, case: str) -> None:
    given, made, body, names = APART[case]
    model = load(onnx_model(f"g ({given}) => ({made}) {body}", check=False))
    assert [spec.name for spec in model.outputs] == names
    for n in (3, 3, 5, 3):
        x, z = np.arange(n, dtype=np.float32), np.arange(n, 0, -1).astype(np.float32)
        right = {"x": x, "y": x + z, "v": x - z, "k": np.nonzero(z)}
        for out in (model(x, z), model.submit(x, z).result()):
            assert all(np.array_equal(o.numpy(), right[name]) for o, name in zip(out, names, strict=True))


def test_a_lie_and_a_reload(host: teal.Host, onnx_model: Any) -> None:
    """The slot's descriptor must not keep the shape of the last answer: the next binding would take it for the plan."""
    given, promised, body, right = LIES["turns"]
    path = onnx_model(f"g ({given}) => ({promised}) {body}", check=False)
    model = host.load("liar", path)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    inputs = model.new_inputs(batch=2, seq=4)
    inputs["x"].numpy()[...] = x
    for _ in range(3):
        for out in (model(x), model(**inputs)):
            assert np.array_equal(out[0].numpy(), right(x))
        host.load("liar", path)
    host.unload("liar")


def test_preparing_after_outputs_of_unknown_size(load: Any) -> None:
    """A completion line that another slot used before says nothing about this one."""
    for _ in range(5):
        model = load("toy_kernels:echo")
        for n in range(1, 20):
            assert model(np.arange(n))[0].shape == (n,)
        model.forget_idle()
        assert model.prepare(np.arange(3))()[0].numpy().tolist() == [0, 1, 2]


# ---- strings -------------------------------------------------------------------------------------------------------


def test_strings_in_and_out(load: Any, onnx_model: Any) -> None:
    model = load(
        onnx_model(
            """g (string[N, M] x) => (string[N, M] y, string[K] z)
            { y = Identity(x)  s = Constant <value_ints = [-1]> ()  z = Reshape(x, s) }"""
        )
    )
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
    model = load(
        onnx_model("g (string[N] x, float[N] k) => (bool[N] same, float[N] y) { same = Equal(x, x)  y = Neg(k) }")
    )
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


def test_a_file_that_no_protocol_buffer_holds() -> None:
    check_size((1 << 31) - 1, "m.onnx")
    with pytest.raises(teal.InvalidArgument, match=r"m\.onnx: 2147483648 bytes, and an ONNX file has less than 2\^31"):
        check_size(1 << 31, "m.onnx")
