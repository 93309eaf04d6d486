"""Python callables as resident kernels: what they may be, take, return and raise."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

# ---- what may be loaded --------------------------------------------------------------------------------------------


def test_a_function_without_a_signature(load: Any) -> None:
    model = load("toy_kernels:add")
    assert model.inputs == (teal.TensorSpec("x", None, None), teal.TensorSpec("y", None, None, optional=True))
    assert model.outputs == (teal.TensorSpec("output", None, None),)
    assert (model.info.kernel, model.info.pure, model.info.idempotent) == ("function", False, False)
    for dtype in ("int8", "float64", "complex64"):
        out = model(np.ones((2, 2), dtype), np.full(2, 2, dtype))["output"]
        assert (out.dtype, out.numpy().tolist()) == (dtype, [[3, 3], [3, 3]])
    assert model(np.arange(3))[0].numpy().tolist() == [10, 11, 12]


def test_a_function_with_a_signature(load: Any) -> None:
    model = load("toy_kernels:norms")
    assert model.inputs == (teal.TensorSpec("x", "float32", ("n", 3)),)
    assert [(spec.name, spec.dtype, spec.shape) for spec in model.outputs] == [
        ("norm", "float32", ("n",)),
        ("mean", "float64", ()),
    ]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = model(x)
    assert out.names == ("norm", "mean")
    assert np.allclose(out["norm"].numpy(), np.linalg.norm(x, axis=1))
    assert float(out["mean"].numpy()) == 2.5
    assert model(np.zeros((0, 3), np.float32))["norm"].shape == (0,)


def test_pure_is_what_the_function_says(load: Any) -> None:
    info = load("toy_kernels:pure_double").info
    assert (info.pure, info.idempotent) == (True, True)
    assert load("toy_kernels:pure_double", idempotent=False).info.idempotent is False
    assert load("toy_kernels:double", idempotent=True).info.idempotent is True


@pytest.mark.parametrize(("name", "expected"), [("by_place", -9), ("by_name", -9), ("Outer.Inner.triple", 3)])
def test_callables_of_other_kinds(load: Any, name: str, expected: int) -> None:
    assert int(load(f"toy_kernels:{name}")(np.int64(1))[0].numpy()) == expected


def test_parameters_by_place_and_by_name(load: Any) -> None:
    for name in ("by_place", "by_name"):
        model = load(f"toy_kernels:{name}")
        assert int(model(np.int64(5), np.int64(2))[0].numpy()) == 3
        assert int(model(y=np.int64(2), x=np.int64(5))[0].numpy()) == 3


def test_a_builtin_of_python(load: Any) -> None:
    assert int(load("builtins:len")(np.arange(5))[0].numpy()) == 5


def test_a_class_keeps_its_state_and_is_closed(load: Any, tmp_path: Path) -> None:
    total = tmp_path / "total"
    model, other = load("toy_kernels:Counter"), load("toy_kernels:Counter")
    assert [int(model(step, str(total))[0].numpy()) for step in (1, 2, 3)] == [1, 3, 6]
    assert int(other(10, str(total))[0].numpy()) == 10  # an instance of its own
    model.unload()
    assert total.read_text() == "6"


@pytest.mark.parametrize(
    ("source", "error", "complaint"),
    [
        ("no_such_module:f", teal.NotFound, "No module named 'no_such_module'; the worker imports it"),
        ("toy_kernels:nothing", teal.NotFound, "toy_kernels has no 'nothing'"),
        ("toy_kernels:Outer.nothing", teal.NotFound, "toy_kernels has no 'Outer.nothing'"),
        ("broken_on_import:f", teal.KernelFailed, "importing broken_on_import: RuntimeError: half a module"),
        ("toy_kernels:NOT_CALLABLE", teal.InvalidArgument, "is int, expected a function or a class"),
        ("toy_kernels:any_number", teal.InvalidArgument, r"takes \*numbers.*@teal.signature"),
        ("toy_kernels:any_name", teal.InvalidArgument, r"takes \*\*names.*@teal.signature"),
        ("toy_kernels:later", teal.InvalidArgument, "coroutine or async generator"),
        ("toy_kernels:one_by_one", teal.InvalidArgument, "coroutine or async generator"),
        ("toy_kernels:NeedsMore", teal.KernelFailed, "an instance of toy_kernels:NeedsMore: TypeError: .*missing"),
        ("toy_kernels:Broken", teal.KernelFailed, "OSError: no weights here"),
        ("toy_kernels:mismatched", teal.InvalidArgument, "does not take the inputs of its @teal.signature.*'b'"),
        ("toy_kernels:", teal.InvalidArgument, r"\$\.source: .*expected a path ending in .onnx, .xml, .pt2, "),
        ("toy_kernels", teal.InvalidArgument, r"\$\.source"),
        ("toy kernels:f", teal.InvalidArgument, r"\$\.source"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded(host: teal.Host, source: str, error: type[teal.TealError], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        host.load("refused", source)
    assert all(info.name != "refused" for info in host.models())
    assert int(host.load("refused", "toy_kernels:first")(0)[0].numpy()) == 1  # the worker goes on
    host.unload("refused")


def test_signature_refuses() -> None:
    good = {"x": ("float32", (1,))}
    for bad, complaint in (
        ({"x": ("float99", (1,))}, r"\$\.inputs\['x'\]: .*float99"),
        ({"x": (5, (1,))}, r"\$\.inputs\['x'\]"),
        ({"x": "float32"}, "expected .dtype, shape."),
        ({"x": ("float32",)}, "expected .dtype, shape."),
        ({"x": ("float32", 3)}, "shape 3, expected"),
        ({"x": ("float32", (-1,))}, "expected at most 8 entries: 0 or more"),
        ({"x": ("float32", (1.5,))}, "expected at most 8 entries"),
        ({"x": ("float32", (1,) * 9)}, "expected at most 8 entries"),
    ):
        with pytest.raises(teal.InvalidArgument, match=complaint):
            teal.signature(inputs=bad, outputs=good)  # type: ignore[arg-type]
        with pytest.raises(teal.InvalidArgument, match=complaint.replace("inputs", "outputs")):
            teal.signature(inputs=good, outputs=bad)  # type: ignore[arg-type]

    def function(x: Any) -> Any:
        return x

    assert teal.signature(inputs=good, outputs={"y": (None, None), "z": ("BYTES", ["n", None])})(function) is function


# ---- what may be returned ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype", "value"),
    [
        ("int", "int64", 5), ("float", "float64", 2.5), ("bool", "bool", True), ("list", "int64", [[1, 2], [3, 4]]),
        ("scalar", "float16", 1.5), ("text", "BYTES", "grün".encode()), ("bytes", "BYTES", b"\x00\xff"),
        ("texts", "BYTES", [[b"a", b"bc"], [b"", "ü".encode()]]), ("array of texts", "BYTES", [b"x", b"yz"]),
        ("fortran", "float64", [[0, 1, 2], [3, 4, 5]]), ("reversed", "int64", [5, 4, 3, 2, 1, 0]),
        ("bfloat16", "bfloat16", [0, 1, 2]), ("mapping", "int64", [0, 1]), ("tuple of one", "int64", [0, 1]),
    ],
)  # fmt: skip
def test_outputs_without_a_signature(load: Any, kind: str, dtype: str, value: Any) -> None:
    (out,) = load("toy_kernels:kinds")(kind)
    assert (out.dtype, out.numpy().tolist()) == (dtype, value)


def test_an_empty_output(load: Any) -> None:
    (out,) = load("toy_kernels:kinds")("empty")
    assert (out.dtype, out.shape) == ("uint8", (0, 5))


@pytest.mark.parametrize("torch_dtype", ["float32", "bfloat16", "bool"])
def test_a_torch_tensor_as_output(load: Any, torch_dtype: str) -> None:
    pytest.importorskip("torch")
    (out,) = load("toy_kernels:torch_output")(torch_dtype)
    assert (out.dtype, out.shape) == (torch_dtype, (3, 2))
    assert out.numpy().astype(float).tolist() == [[0, 1], [1, 1], [0, 1]]


@pytest.mark.parametrize("kind", ["right", "right mapping"])
def test_outputs_as_declared(load: Any, kind: str) -> None:
    y, z = load("toy_kernels:wrong")(kind)
    assert (y.shape, z.shape) == ((2, 3), (3,))


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("dtype", r"\$\.outputs\[0\]\.dtype: float64, output 'y' is declared as float32"),
        ("rank", r"\$\.outputs\[0\]\.shape: rank 1, output 'y' expects rank 2"),
        ("extent", r"\$\.outputs\[0\]\.shape\[0\]: 3, output 'y' expects 2"),
        ("symbol", r"\$\.outputs\[1\]\.shape\[0\]: 4, but 'n' is 3 elsewhere"),
        ("big", "900, output 'y' expects 2"),
        ("none", "returned None for output 'z'"),
        ("all none", "returned NoneType, expected 2 outputs"),
        ("one", "returned ndarray, expected 2 outputs"),
        ("three", "returned 3 outputs, expected 2"),
        ("empty", "returned 0 outputs, expected 2"),
        ("names", r"returned \['q', 'y'\], expected \['y', 'z'\]"),
        ("missing name", r"returned \['y'\], expected"),
        ("objects", "object, expected str or bytes"),
        ("none inside", "NoneType, expected str or bytes"),
        ("strings", "BYTES, output 'y' is declared as float32"),
        ("ragged", "inhomogeneous"),
        ("byte order", "output 'y' is >f4, not one of Teal's dtypes"),
        ("datetime", "output 'y' is datetime64.*, not one of Teal's dtypes"),
        ("longdouble", "output 'y' is float128, not one of Teal's dtypes"),
        ("object", "output 'y' is object: an object array, expected numbers or strings"),
        ("set", "output 'y' is set: an object array"),
    ],
)
def test_outputs_that_are_not_as_declared(load: Any, kind: str, complaint: str) -> None:
    model = load("toy_kernels:wrong")
    with pytest.raises(teal.KernelFailed, match=complaint):
        model(kind)
    assert model("right")[1].shape == (3,)


def test_outputs_of_too_many_dimensions(load: Any) -> None:
    for name in ("too_deep", "text_too_deep"):
        with pytest.raises(teal.KernelFailed, match="rank 9, expected at most 8"):
            load(f"toy_kernels:{name}")(0)


@pytest.mark.parametrize("n", [0, 1, 1000, 5000, 200_000, 3])
def test_outputs_of_unknown_size(load: Any, n: int) -> None:
    model = load("toy_kernels:sized")
    for _ in range(3):  # what was too large the first time is planned for the next
        big, count, none = model(n)
        assert np.array_equal(big.numpy(), np.arange(n, dtype=np.float32))
        assert int(count.numpy()) == n
        assert (none.dtype, none.shape) == ("int16", (0, 3))


def test_outputs_are_copied_once_and_counted(load: Any, counted: Any) -> None:
    model = load("toy_kernels:norms")
    before = model.statistics()
    model(np.ones((4, 3), np.float32))
    after = counted(model)
    assert (after.copies_in - before.copies_in, after.copies_out - before.copies_out) == (1, 2)
    assert after.bytes_copied - before.bytes_copied == 48 + 16 + 8


# ---- what is checked before it runs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (np.ones((2, 3)), r"\$\.inputs\[0\]\.dtype: float64, input 'x' expects float32"),
        (np.ones((2, 4), np.float32), r"\$\.inputs\[0\]\.shape\[1\]: 4, input 'x' expects 3"),
        (np.ones(3, np.float32), "rank 1, input 'x' expects rank 2"),
        ("text", "does not convert|not an array"),
        ([[1, 2]], "2, input 'x' expects 3"),
    ],
    ids=repr,
)
def test_wrong_inputs(load: Any, given: Any, complaint: str) -> None:
    model = load("toy_kernels:norms")
    with pytest.raises(teal.InvalidArgument, match=complaint) as caught:
        model(given)
    assert caught.value.path is not None
    assert caught.value.path.startswith("$.inputs[0]")
    assert model.statistics().requests == 0


def test_names_of_inputs(load: Any) -> None:
    model = load("toy_kernels:add")
    for call, complaint in (
        (model, r"input 'x' is missing; the inputs are \['x', 'y'\]"),
        (lambda: model(y=1), "input 'x' is missing"),
        (lambda: model(x=None), "input 'x' is missing"),
        (lambda: model(x=1, z=2), r"\['z'\]: not inputs of .*; it has \['x', 'y'\]"),
        (lambda: model(1, x=1), r"given twice: \['x'\]"),
        (lambda: model(1, 2, 3), "3 inputs given, .* has 2"),
        (lambda: model({"x": 1}, y=2, x=3), r"given twice: \['x'\]"),
        (lambda: model({"x": 1, 5: 2}), "not all names"),
    ):
        with pytest.raises(teal.InvalidArgument, match=complaint):
            call()
    for out in (model(5, 6), model({"x": 5, "y": 6}), model({"x": 5}, y=6), model(5, y=6), model(x=5, y=6)):
        assert int(out[0].numpy()) == 11


# ---- what is raised ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("value", "ValueError: plain"),
        ("no text", "ValueError"),
        ("unicode", "ValueError: grün, 日本"),
        ("surrogate", "ValueError: \\udcff"),
        ("lines", "ValueError: one\ntwo\0three"),
        ("unprintable", "Unprintable: (its text cannot be made)"),
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("stop", "StopIteration"),
        ("teal", "Cancelled: mine: by client: cancel() was called"),
        ("key", "KeyError: 'name'"),
    ],
)
def test_exceptions_arrive_with_their_text(load: Any, counted: Any, kind: str, status: str) -> None:
    model = load("toy_kernels:fails")
    with pytest.raises(teal.KernelFailed) as caught:
        model(kind)
    assert caught.value.status == status
    assert str(caught.value) == f"{model.name}: {status}"
    numbers = counted(model)
    assert (numbers.requests, numbers.failed) == (1, 1)


def test_a_long_text_is_cut_between_characters(load: Any) -> None:
    with pytest.raises(teal.KernelFailed) as caught:
        load("toy_kernels:fails")("long")
    assert re.fullmatch("ValueError: ü{200,}�?", caught.value.status)


def test_failures_leave_the_worker_and_its_state(load: Any, host: teal.Host) -> None:
    pid = int(load("toy_kernels:worker_pid")()[0].numpy())
    model = load("toy_kernels:fails")
    for _ in range(50):
        with pytest.raises(teal.KernelFailed):
            model("value")
    assert int(load("toy_kernels:worker_pid")()[0].numpy()) == pid != os.getpid()
    assert host.statistics().restarts == 0


def test_a_masked_array_is_refused_in_both_directions(load: Any) -> None:
    masked = load("toy_kernels:masked")
    with pytest.raises(teal.KernelFailed, match="output 'output' is a masked array, which would lose its mask"):
        masked(np.ones(3))
    with pytest.raises(teal.InvalidArgument, match="a masked array would lose its mask"):
        masked(np.ma.masked_array([1.0], [True]))


def test_a_signature_takes_numpys_dtypes() -> None:
    @teal.signature(inputs={"x": (np.float32, ("n",))}, outputs={"y": (np.dtype("i4"), None)})
    def kernel(x: Any) -> Any:
        return x

    inputs, outputs, _ = kernel.__teal_signature__
    assert (inputs[0].dtype, outputs[0].dtype) == ("float32", "int32")
    with pytest.raises(teal.InvalidArgument, match=r"\$\.inputs\['x'\]: dtype 'object' is not one of Teal's"):
        teal.signature(inputs={"x": (object, None)}, outputs={})
