"""Every dtype, shape and layout into shared memory and back, bit by bit."""

from __future__ import annotations

import array
import ctypes
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import teal
from teal import _core

NUMPY = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in _core.dtype_names() if name != "BYTES"}
RANDOM = np.random.default_rng(7)


def noise(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Random bits, NaNs and denormals among them."""
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == np.bool_:
        return RANDOM.integers(0, 2, shape).astype(bool)
    return np.frombuffer(RANDOM.bytes(count * dtype.itemsize), dtype).reshape(shape)


def same(a: Any, b: Any) -> bool:
    """Same dtype, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.fixture(scope="module")
def identity(host: teal.Host) -> teal.Model:
    return host.load("identity", "builtin:identity")


def test_the_list_of_dtypes() -> None:
    assert set(NUMPY) == {
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32",
        "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    }  # fmt: skip
    for name, dtype in NUMPY.items():
        assert _core.dtype_size(name) == dtype.itemsize


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (3, 0, 2)], ids=str)
def test_numpy_and_back(identity: teal.Model, name: str, shape: tuple[int, ...]) -> None:
    given = noise(NUMPY[name], shape)
    (out,) = identity(given)
    assert (out.dtype, out.shape, out.nbytes, out.size) == (name, shape, given.nbytes, given.size)
    assert same(out.numpy(), given)
    assert same(np.asarray(out), given)


@pytest.mark.parametrize("name", NUMPY)
def test_strided_arrays_are_packed(identity: teal.Model, name: str) -> None:
    whole = noise(NUMPY[name], (6, 5, 8))
    for view in (whole[::2, :, ::3], whole.transpose(2, 0, 1), whole[::-1, ::-2], whole[:, 1:3, 2:5], whole[3]):
        assert same(identity(view)[0].numpy(), np.ascontiguousarray(view))


@pytest.mark.parametrize("name", NUMPY)
def test_torch_and_back(identity: teal.Model, name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"torch has no {name}")
    bits = noise(NUMPY[name], (4, 6))
    unsigned = np.dtype(f"u{min(bits.dtype.itemsize, 8)}")
    given = torch.from_numpy(bits.view(unsigned if name != "bool" else bool).copy()).view(dtype)
    (out,) = identity(given)
    assert (out.dtype, out.shape) == (name, (4, 6))
    back = torch.from_dlpack(out)
    assert back.dtype == dtype
    assert back.data_ptr() == out.address
    assert back.view(torch.uint8).numpy().tobytes() == bits.tobytes()
    assert same(identity(given.t())[0].numpy(), np.ascontiguousarray(bits.T))


def test_special_torch_tensors(identity: teal.Model) -> None:
    torch = pytest.importorskip("torch")
    assert identity(torch.ones(3, requires_grad=True))[0].numpy().tolist() == [1, 1, 1]
    assert identity(torch.ones(3).expand(2, 3))[0].numpy().tolist() == [[1, 1, 1]] * 2
    for elsewhere in (torch.ones(3, device="meta"), torch.ones((3, 3)).to_sparse()):
        with pytest.raises(teal.InvalidArgument, match="Tensor is not an array in CPU memory"):
            identity(elsewhere)


def test_lazy_bits_of_torch(identity: teal.Model) -> None:
    torch = pytest.importorskip("torch")
    given = torch.tensor([[1 + 2j, 3 - 4j]])
    for lazy in (given.conj(), given.mH, given.conj().imag, given.conj().imag[:, 1]):
        assert lazy.is_conj() or lazy.is_neg()
        right = lazy.resolve_conj().resolve_neg().numpy()
        assert np.array_equal(identity(lazy)[0].numpy(), right)


@pytest.mark.parametrize("rank", range(9))
def test_ranks(identity: teal.Model, rank: int) -> None:
    given = noise(NUMPY["int16"], (2, 1, 3, 1, 2, 1, 1, 2)[:rank])
    assert same(identity(given)[0].numpy(), given)


def test_rank_nine_is_refused(identity: teal.Model) -> None:
    with pytest.raises(teal.InvalidArgument, match="rank 9, expected at most 8"):
        identity(np.zeros((1,) * 9))


def test_odd_strides_of_dimensions_of_one(identity: teal.Model) -> None:
    base = np.arange(12.0)
    for strides in ((8, 8 * 7), (3, 8), (-800, 8), (0, 8)):
        odd = np.lib.stride_tricks.as_strided(base, (1, 12) if strides[1] == 8 else (12, 1), strides)
        before = identity.statistics()
        assert same(identity(odd)[0].numpy(), base.reshape(odd.shape))
        after = identity.statistics()
        assert after.copies_in - before.copies_in == 1


def test_broadcast_arrays(identity: teal.Model) -> None:
    given = np.broadcast_to(np.arange(3, dtype=np.int32), (1000, 3))
    assert same(identity(given)[0].numpy(), np.ascontiguousarray(given))


def test_fortran_order(identity: teal.Model) -> None:
    given = np.asfortranarray(np.arange(24.0).reshape(2, 3, 4))
    before = identity.statistics()
    assert np.array_equal(identity(given)[0].numpy(), given)
    after = identity.statistics()
    assert (after.copies_in - before.copies_in, after.bytes_copied - before.bytes_copied) == (1, given.nbytes)


def test_read_only_arrays(identity: teal.Model) -> None:
    given = np.arange(5)
    given.flags.writeable = False
    assert same(identity(given)[0].numpy(), given)
    assert same(identity(memoryview(given))[0].numpy(), given)


def test_a_big_array(identity: teal.Model) -> None:
    given = noise(NUMPY["float32"], (1 << 24,))  # 64 MiB
    (out,) = identity(given)
    assert np.array_equal(out.numpy().view(np.uint32), given.view(np.uint32))
    backwards = given[::-1]
    assert np.array_equal(identity(backwards)[0].numpy().view(np.uint32), backwards.view(np.uint32))


def test_an_empty_array_of_enormous_extents(identity: teal.Model) -> None:
    given = np.zeros((0, 1 << 40), np.uint8)
    assert identity(given)[0].shape == given.shape


@pytest.mark.parametrize(
    ("given", "dtype", "shape"),
    [
        (5, "int64", ()),
        (5.0, "float64", ()),
        (True, "bool", ()),
        (1j, "complex128", ()),
        (np.float32(2), "float32", ()),
        (np.bool_(True), "bool", ()),
        ([1, 2, 3], "int64", (3,)),
        ((1.5, 2), "float64", (2,)),
        ([[1], [2]], "int64", (2, 1)),
        ([], "float64", (0,)),
        ([[], []], "float64", (2, 0)),
    ],
    ids=repr,
)
def test_python_numbers_and_lists(identity: teal.Model, given: Any, dtype: str, shape: tuple[int, ...]) -> None:
    (out,) = identity(given)
    assert (out.dtype, out.shape) == (dtype, shape)
    assert np.array_equal(out.numpy(), np.asarray(given))


def test_other_holders_of_numbers(identity: teal.Model) -> None:
    for given in (
        bytearray(b"abc"),
        memoryview(b"abc"),
        array.array("d", [1.0, 2.0]),
        array.array("q", [1]),
        (ctypes.c_int32 * 3)(1, 2, 3),
        memoryview(np.arange(6.0).reshape(2, 3))[::-1],
    ):
        assert same(identity(given)[0].numpy(), np.array(given))


STRINGS: list[Any] = [
    "hello",
    "",
    b"\x00\xff\x00",
    ["a", "", "grün 日本 🦆"],
    [["a", "bc"], ["d", "e" * 1000]],
    np.array(["x", "yz"]),
    np.array([b"x", b"yz"]),
    np.array([["x"], [b"yz"]], object),
    np.array("scalar"),
    np.zeros((2, 0), "U3"),
    np.str_("numpy"),
]


@pytest.mark.parametrize("given", STRINGS, ids=lambda given: repr(given)[:20])
def test_strings_and_back(identity: teal.Model, given: Any) -> None:
    (out,) = identity(given)
    expected = np.asarray(given, object)
    assert (out.dtype, out.shape) == ("BYTES", expected.shape)
    back = out.numpy()
    assert (back.dtype, back.shape) == (object, expected.shape)
    assert [*back.ravel()] == [s.encode() if isinstance(s, str) else s for s in expected.ravel()]
    again = identity(out)[0].numpy()  # a tensor of strings is an input like any other
    assert again.tolist() == back.tolist()


def test_many_strings(identity: teal.Model) -> None:
    given = np.array([str(i) * (i % 7) for i in range(20_000)], object)
    assert [*identity(given)[0].numpy()] == [text.encode() for text in given]


def test_numpy_string_dtype(identity: teal.Model) -> None:
    given = np.array(["grün", "x" * 100], np.dtypes.StringDType())
    assert [*identity(given)[0].numpy()] == ["grün".encode(), b"x" * 100]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (object(), r"\$\.inputs\[0\].*object is not an array in CPU memory"),
        (types.MappingProxyType({}), "mappingproxy is not an array"),
        ({1, 2}, "set is not an array"),
        (range(3), "range is not an array"),
        (np.array([1, None]), "int, expected str or bytes"),
        (["a", 1], "int, expected str or bytes"),
        (["a", ["b"]], "list, expected str or bytes"),
        (["\ud800"], "UTF-8"),
        ([[1], [1, 2]], "inhomogeneous"),
        (2**70, "makes object"),
        (np.zeros(3, ">f4"), r"foreign byte order; convert it with \.astype\('float32'\)"),
        (np.zeros(3, "M8[s]"), "datetime64"),
        (np.zeros(2, [("a", "f4")]), "not one of Teal's dtypes"),
        (np.zeros(2, np.longdouble), "not one of Teal's dtypes"),
        (np.ma.array([1, 2], mask=[0, 1]), "masked array would lose its mask"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_tensor(identity: teal.Model, given: Any, complaint: str) -> None:
    with pytest.raises(teal.InvalidArgument, match=complaint) as caught:
        identity(x=given)
    assert caught.value.path is None or caught.value.path.startswith("$.inputs[0]")


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3, "float32", 3.0),
        (True, "int8", 1),
        ([1, 2], "bfloat16", [1, 2]),
        ([0.5], "float8_e5m2", [0.5]),
        (255, "uint8", 255),
        ([], "int16", []),
        (2, "complex64", 2 + 0j),
        (np.int64(7), "int16", 7),
    ],
)
def test_numbers_take_the_declared_dtype(load: Any, onnx_model: Any, value: Any, dtype: str, expected: Any) -> None:
    given = _converted(value, dtype)
    assert given.dtype == NUMPY[dtype]
    assert np.array_equal(given.astype(np.complex128), np.asarray(expected, np.complex128))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.5, "int64"), (2.0, "int64"), (1j, "float32"), (1, "bool"), (256, "uint8"), (-1, "uint8"),
     (np.int64(-1), "uint16"), ([1, 2.5], "int32"), ("a", "float32"), (np.int64(1 << 40), "int32"), (2**70, "int64")],
)  # fmt: skip
def test_numbers_are_never_cut(value: Any, dtype: str) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.x: .*does not convert to"):
        _converted(value, dtype)


def _converted(value: Any, dtype: str) -> Any:
    from teal.host.arguments import _from_python
    from teal.host.wire import Spec

    return _from_python(value, Spec("x", dtype), "$.x")
