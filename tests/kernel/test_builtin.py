"""The builtin kernels: identity, sum, sleep, spin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import teal
from teal.kernel.builtin import BUILTINS

LENGTHS = [*range(40), 63, 64, 65, 127, 129, 255, 1000, 1023, 4097, 100_003]


@pytest.fixture(scope="module")
def total(host: teal.Host) -> teal.Model:
    return host.load("sum", "builtin:sum")


@pytest.mark.parametrize("length", LENGTHS)
def test_sum_of_any_length(total: teal.Model, length: int) -> None:
    """Whole numbers add up exactly in whatever order the vector unit takes them."""
    x = np.random.default_rng(length).integers(-1000, 1000, length).astype(np.float32)
    (out,) = total(x)
    assert (out.dtype, out.shape) == ("float64", ())
    assert float(out.numpy()) == x.sum(dtype=np.float64)


def test_sum_is_accurate(total: teal.Model) -> None:
    x = np.random.default_rng(3).random(1_000_003, np.float32)
    assert float(total(x)[0].numpy()) == pytest.approx(float(x.sum(dtype=np.float64)), rel=1e-12)


def test_sum_of_what_is_no_number(total: teal.Model) -> None:
    inf = np.float32(np.inf)
    for given, expected in (([np.nan, 1], np.nan), ([inf, 1], inf), ([inf, -inf], np.nan), ([-inf] * 9, -inf)):
        assert np.array_equal(total(np.array(given, np.float32))[0].numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("shape", [(3, 5, 7), (1,) * 8, (0, 4), (2, 0)], ids=str)
def test_sum_of_any_shape(total: teal.Model, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert float(total(x)[0].numpy()) == x.sum()


def test_sum_wants_float32(total: teal.Model) -> None:
    assert float(total([1, 2, 3.5])[0].numpy()) == 6.5
    for given in (np.arange(3), np.arange(3.0), np.arange(3, dtype=np.float16)):
        with pytest.raises(teal.InvalidArgument, match=r"\$\.inputs\[0\]\.dtype: .*, input 'x' expects float32"):
            total(given)


@pytest.mark.parametrize("name", ["sleep", "spin"])
def test_sleep_and_spin_take_their_time(load: Any, counted: Any, name: str) -> None:
    model = load(f"builtin:{name}")
    for microseconds in (0, 1, 2000):
        answer = int(model(microseconds)[0].numpy())
        assert answer == microseconds if name == "sleep" else answer >= microseconds * 1000
    run = counted(model).stages["run"]
    assert run.count == 3
    assert run.max_us >= 2000


@pytest.mark.parametrize("name", ["sleep", "spin"])
@pytest.mark.parametrize("microseconds", [-1, 60_000_001, np.iinfo(np.int64).min, np.iinfo(np.int64).max])
def test_sleep_and_spin_refuse(load: Any, name: str, microseconds: int) -> None:
    with pytest.raises(teal.KernelFailed, match=f"{microseconds} microseconds, expected 0 to 60000000"):
        load(f"builtin:{name}")(microseconds)


@pytest.mark.parametrize("given", [1.5, np.float32(2.5), np.int32([1]), [1], "a", np.zeros((), np.float64)], ids=repr)
def test_sleep_wants_one_whole_number(load: Any, given: Any) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.inputs\[0\]"):
        load("builtin:sleep")(given)


def test_signatures(load: Any) -> None:
    for name, (inputs, outputs, pure) in BUILTINS.items():
        model = load(f"builtin:{name}")
        assert [spec.name for spec in model.inputs] == [spec.name for spec in inputs]
        assert [spec.name for spec in model.outputs] == [spec.name for spec in outputs]
        info = model.info
        assert (info.kernel, info.source, info.pure, info.idempotent) == ("builtin", name, pure, True)


def test_identity_of_several(load: Any) -> None:
    model = load("builtin:identity:3")
    assert [(spec.name, spec.in_place, spec.like) for spec in model.outputs] == [
        ("y", True, "x"), ("y1", True, "x1"), ("y2", True, "x2"),
    ]  # fmt: skip
    x, x1, x2 = np.arange(6, dtype=np.int16), np.ones((2, 3)), ["text", "too"]
    y, y1, y2 = model(x, x1, x2)
    np.testing.assert_array_equal(y.numpy(), x)
    np.testing.assert_array_equal(y1.numpy(), x1)
    assert y2.numpy().tolist() == [b"text", b"too"]
    given = model.new_inputs(x=("int8", (4,)), x1=("float32", (2,)), x2=("int64", (0,)))
    made = model(**given)
    assert [one.numpy().ctypes.data for one in made][:2] == [given[name].numpy().ctypes.data for name in ("x", "x1")]
    assert model.statistics().copies_out == 1  # the strings of the first call
    with pytest.raises(teal.InvalidArgument, match="'x2' is missing"):
        model(x, x1)


@pytest.mark.parametrize("count", ["0", "65", "-1", "", "x", "1.5", "\u0663", "9" * 300])
def test_identity_of_no_number(host: teal.Host, count: str) -> None:
    with pytest.raises(teal.InvalidArgument, match="expected 1 to 64"):
        host.load("none", f"builtin:identity:{count}")


@pytest.mark.parametrize(
    "source",
    ["builtin:", "builtin:sum:2", "builtin:identity :2", "builtin:nothing", "builtin:Identity", "builtin:sum "],
)
def test_there_is_no_such_builtin(host: teal.Host, source: str) -> None:
    with pytest.raises(teal.NotFound, match=r"builtin kernel .*; there are \['identity', 'sleep', 'spin', 'sum'\]"):
        host.load("none", source)
