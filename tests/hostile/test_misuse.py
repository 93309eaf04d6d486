"""A well-meaning client that gets it wrong: messages say what, where ($.inputs[0].shape[1]) and what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash_host import CrashHost
from witness import affine_model

import teal


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[teal.Host]:
    """A host with an ONNX model (x: float64[n]), a function with a fixed extent, and identity."""
    with CrashHost(workers=1) as host:
        attached = teal.connect(host.address)
        file = tmp_path_factory.mktemp("models") / "affine.onnx"
        file.write_bytes(affine_model())
        attached.load("affine", file)
        attached.load("norm", "hostile_kernels:norm")
        attached.load("join", "hostile_kernels:join")
        attached.load("identity", "builtin:identity")
        yield attached
        attached.close()


@pytest.fixture(params=["identity", "affine", "norm"])
def model(request: pytest.FixtureRequest, attached: teal.Host) -> teal.Model:
    return attached.model(request.param)


def refused(call: Callable[[], Any], path: str | None, *words: str) -> None:
    """It raises InvalidArgument with that path, and its message has all these words."""
    with pytest.raises(teal.InvalidArgument) as caught:
        call()
    assert caught.value.path == path
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"
    assert len(str(caught.value)) < 2000


# ---- inputs ----------------------------------------------------------------------------------------------------------


def test_dtype(attached: teal.Host) -> None:
    affine, norm = attached.model("affine"), attached.model("norm")
    refused(lambda: affine(x=np.zeros(3, np.float32)), "$.inputs[0].dtype", "float32", "expects float64")
    refused(lambda: norm(x=np.zeros((2, 3), np.int64)), "$.inputs[0].dtype", "int64", "expects float32")
    refused(lambda: affine(x="text"), "$.inputs[0]", "str")
    refused(lambda: affine(x=np.zeros(3, ">f8")), "$.inputs[0].dtype", "byte order", "astype")
    refused(lambda: affine(x=np.zeros(3, "datetime64[s]")), "$.inputs[0].dtype", "datetime64")
    refused(lambda: affine(x=np.zeros(3, [("a", "f4")])), "$.inputs[0].dtype", "not one of Teal's dtypes")
    refused(lambda: affine(x=object()), "$.inputs[0]", "object", "not an array in CPU memory")
    refused(lambda: affine(x={"a": 1}), "$.inputs[0]", "dict")
    refused(lambda: affine(x=["a", 1.0]), "$.inputs[0]", "list")
    with pytest.raises(teal.InvalidArgument, match="object"):
        affine(x=np.array([None, 1], object))


def test_rank_and_shape(attached: teal.Host) -> None:
    affine, norm = attached.model("affine"), attached.model("norm")
    refused(lambda: affine(x=np.zeros((2, 2))), "$.inputs[0].shape", "rank 2", "'x' expects rank 1")
    refused(lambda: affine(x=np.float64(1)), "$.inputs[0].shape", "rank 0", "expects rank 1")
    refused(lambda: norm(x=np.zeros((2, 4), np.float32)), "$.inputs[0].shape[1]", "4", "expects 3")
    refused(lambda: norm(x=np.zeros((2, 0), np.float32)), "$.inputs[0].shape[1]", "0", "expects 3")
    join = attached.model("join")
    two, three = np.zeros((2, 3), np.float32), np.zeros((3, 3), np.float32)
    refused(lambda: join(a=two, b=three), "$.inputs[1].shape[0]", "3", "'n' is 2")
    identity, deep = attached.model("identity"), (1,) * 9
    refused(lambda: identity(x=np.zeros(deep)), "$.inputs[0].shape", "rank 9, expected at most 8")
    refused(lambda: identity.new_inputs(x=("float64", deep)), "$.inputs[0].shape", "rank 9, expected at most 8")


def test_names(model: teal.Model) -> None:
    good = {"identity": np.zeros(3), "affine": np.zeros(3), "norm": np.zeros((1, 3), np.float32)}[model.name]
    refused(model, "$.inputs[0]", "input 'x' is missing", "['x']")
    refused(lambda: model(x=good, y=good), None, "['y']", f"not inputs of {model.name!r}", "['x']")
    refused(lambda: model(**{"x\0": good}), None, "x\\x00", "['x']")
    refused(lambda: model({"": good}), None, "['']", "['x']")
    refused(lambda: model(good, x=good), None, "given twice: ['x']")
    refused(lambda: model(good, good), None, "2 inputs given", "has 1")
    refused(lambda: model(**{"n" * 300: good}), None, "nnn", "['x']")
    assert model(good)[0].shape


def test_new_inputs(attached: teal.Host) -> None:
    affine, identity = attached.model("affine"), attached.model("identity")
    refused(affine.new_inputs, "$.inputs[0].shape", "give n=")
    refused(lambda: affine.new_inputs(n=3, m=4), None, "['m']", "neither dimensions nor inputs of 'affine'")
    refused(lambda: affine.new_inputs(n=-1), "$.inputs[0].shape", "-1", "0 to 2^63 - 1")
    refused(lambda: affine.new_inputs(x=(1, 2)), "$.inputs[0].shape", "rank 2", "expects rank 1")
    refused(identity.new_inputs, "$.inputs[0]", "give its shape")
    refused(lambda: identity.new_inputs(x=(3,)), "$.inputs[0].dtype", "give its dtype too")
    refused(lambda: identity.new_inputs(x=("BYTES", (3,))), "$.inputs[0]", "strings cannot be filled in place")
    for dims in ({"n": "three"}, {"n": None}, {"n": 1.5}, {"x": ("float64", (1.5,))}):
        with pytest.raises((teal.InvalidArgument, TypeError)) as caught:
            affine.new_inputs(**dims)
        assert str(caught.value)


@pytest.mark.parametrize("extent", [1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200])
def test_sizes(extent: int, attached: teal.Host) -> None:
    affine, identity = attached.model("affine"), attached.model("identity")
    for take in (
        lambda: affine.new_inputs(n=extent * 8),
        lambda: identity.new_inputs(x=("uint8", (extent, extent))),
        lambda: identity.new_inputs(x=("complex128", (extent,))) if extent > 1 << 38 else affine.new_inputs(n=1 << 45),
        lambda: attached.empty((extent, extent)),
        lambda: attached.empty((extent, 0, extent), "float64") if extent > 1 << 40 else attached.empty((1 << 45,)),
    ):
        with pytest.raises((teal.InvalidArgument, teal.QuotaExceeded)) as caught:
            take()
        assert re.search(r"\d", str(caught.value)), caught.value
    assert float(identity(np.float64(3))[0].numpy()) == 3


def test_empty_beside_huge(attached: teal.Host) -> None:
    """0 * 2^40 elements are no bytes: legal where NumPy takes it."""
    identity = attached.model("identity")
    x = np.zeros((0, 1 << 40), np.uint8)
    assert identity(x)[0].shape == (0, 1 << 40)
    assert attached.empty((0, 5)).numpy().shape == (0, 5)


STRIDED: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda a: a[::-1],
    "every second": lambda a: a[::2],
    "negative in both": lambda a: a[::-1, ::-2],
    "transposed": lambda a: a.T,
    "Fortran": np.asfortranarray,
    "broadcast": lambda a: np.broadcast_to(a[0], (40, a.shape[1])),
    "a column": lambda a: a[:, 3],
    "overlapping": lambda a: np.lib.stride_tricks.sliding_window_view(a[0], 5),
    "an odd start": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, a.size, 1).reshape(a.shape),
    "read-only": lambda a: a.view() if a.setflags(write=False) is None else a,
    "size one with odd strides": lambda a: np.lib.stride_tricks.as_strided(a[:1], (1, a.shape[1]), (7, a.itemsize)),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("dtype", ["float64", "int8", "complex128", "float16", "bool"])
def test_strides(name: str, dtype: str, attached: teal.Host) -> None:
    """However an array lies, what arrives is what it holds, and the copy is counted."""
    identity = attached.model("identity")
    base = (np.arange(20 * 30).reshape(20, 30) % 113).astype(dtype)
    array = STRIDED[name](base)
    before = identity.statistics().copies_in
    answer = identity(array)[0].numpy()
    assert answer.dtype == array.dtype
    assert np.array_equal(answer, array)
    assert identity.statistics().copies_in == before + 1


def test_bits_pass_through(attached: teal.Host) -> None:
    """NaN with payloads, signalling NaN, infinities, negative zero, denormals: bit for bit."""
    identity = attached.model("identity")
    for bits, dtype in (("uint64", "float64"), ("uint32", "float32"), ("uint16", "float16")):
        width = np.dtype(bits).itemsize * 8
        patterns = np.array([0, 1, 1 << width - 1, *range((1 << width) - 5, 1 << width)], bits)
        exponent = {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF0000000000000}[width]
        patterns = np.concatenate(
            [patterns, np.array([exponent, exponent | 1, exponent | 1 << width - 1, exponent | 5], bits)]
        )
        answer = identity(patterns.view(dtype))[0].numpy()
        assert np.array_equal(answer.view(bits), patterns)
    affine = attached.model("affine")
    assert np.isnan(affine(x=np.array([np.nan, 1.0]))[0].numpy()).tolist() == [True, False]


# ---- calls -----------------------------------------------------------------------------------------------------------


def test_deadlines(attached: teal.Host) -> None:
    identity = attached.model("identity")
    x = np.zeros(3)
    for deadline in (float("nan"), float("inf"), float("-inf"), 1e300, "soon"):
        with pytest.raises((teal.InvalidArgument, TypeError)) as caught:
            identity(x, deadline=deadline)
        assert str(caught.value)
    for deadline in (0, -1, 1e-12):
        with pytest.raises(teal.DeadlineExceeded):
            identity(x, deadline=deadline)
    with pytest.raises((teal.InvalidArgument, TypeError)):
        identity(x, priority=1 << 40)
    with pytest.raises((teal.InvalidArgument, TypeError)):
        identity(x, priority="high")
    assert identity(x, deadline=60, priority=-(1 << 31))[0].shape == (3,)


def test_released_and_closed(attached: teal.Host) -> None:
    identity = attached.model("identity")
    out = identity(np.zeros(3))[0]
    view = out.numpy()
    with pytest.raises(teal.Busy, match="1 views of this tensor are still in use"):
        out.release()
    del view
    out.release()
    for use in (out.numpy, lambda: np.asarray(out), lambda: identity(out)):
        with pytest.raises((teal.Closed, BufferError, teal.InvalidArgument), match="released"):
            use()
    other = teal.connect(attached.address)
    model = other.model("identity")
    other.close()
    for use in (
        lambda: model(np.zeros(3)),
        other.models,
        lambda: other.load("m", "builtin:sum"),
        lambda: other.empty((3,)),
    ):
        with pytest.raises(teal.Closed, match="closed"):
            use()
    other.close()


# ---- names and paths -------------------------------------------------------------------------------------------------

BAD_NAMES = [
    "",
    "..",
    ".",
    "a..b",
    "../a",
    "a/b",
    "/etc/passwd",
    "a\0b",
    "a b",
    "a\n",
    "-a",
    ".a",
    "ä",
    "x" * 129,
    "x" * 300,
    "a%2f",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name[:20]))
def test_model_names(name: str, attached: teal.Host) -> None:
    for use in (
        lambda: attached.load(name, "builtin:identity"),
        lambda: attached.model(name),
        lambda: attached.unload(name),
    ):
        refused(use, "$.name", "model name", "1 to 128 letters")
        with pytest.raises(teal.InvalidArgument) as caught:
            use()
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "a\0b", "a b", "-a", "x" * 65, "x" * 300], ids=lambda name: ascii(name[:20])
)
def test_host_names(name: str) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"host name .*expected 1 to 64 letters"):
        teal.Host(name)


def test_sources(attached: teal.Host, tmp_path: Path) -> None:
    load = lambda source, **options: lambda: attached.load("m", source, **options)  # noqa: E731
    refused(
        load("nonsense"),
        "$.source",
        "a path ending in .onnx, .xml, .pt2, .safetensors or .elf, builtin:NAME or package.module:function",
    )
    refused(load("x" * 10_000), "$.source", "expected a path")
    refused(load("model.onnx\0"), "$.source", "expected a path")
    refused(load("a\0.onnx"), "$.source", "NUL")
    refused(load("a" * 5000 + ".onnx"), "$.source", "4095 bytes")
    refused(load(tmp_path, kernel="onnx"), "$.source", "not a regular file")
    refused(
        load("builtin:identity", kernel="magic"),
        "$.kernel",
        "magic",
        "onnx, openvino, torch, systems, elf, function or builtin",
    )
    refused(load("builtin:identity", version=0), "$.version", "1 to 2^31 - 1")
    refused(load("builtin:identity", version=1 << 31), "$.version", "1 to 2^31 - 1")
    refused(load("builtin:identity", version=1 << 70), "$.version", "71 bits, expected at most 63")
    refused(load("builtin:identity", threads=0), "$.threads", "1 to 1024")
    refused(load(None), "$.source", "no model repository", "--repository")
    for source, words in [
        (tmp_path / "missing.onnx", "No such file"),
        ("builtin:nothing", "there are ['identity'"),
        ("no_such_module:thing", "No module named"),
        ("math:no_such_function", "math has no 'no_such_function'"),
        ("math:pi.deeper", "no"),
    ]:
        with pytest.raises(teal.NotFound) as caught:
            attached.load("m", source)
        assert words in str(caught.value)
    with pytest.raises(teal.TealError, match="float, expected a function"):
        attached.load("m", "math:pi")
    with pytest.raises((teal.InvalidArgument, TypeError, teal.TealError)):
        attached.load("m", b"\xff\xfe.onnx")
    with pytest.raises(teal.NotFound, match="no version 77"):
        attached.model("identity", version=77)


def test_paths_with_odd_bytes(attached: teal.Host, tmp_path: Path) -> None:
    """File names are bytes: those that are no UTF-8 load like any other, or are refused in words."""
    import os

    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.onnx")
    with open(path, "wb") as file:
        file.write(affine_model())
    try:
        model = attached.load("odd", os.fsdecode(path))
    except teal.InvalidArgument as error:
        assert "UTF-8" in str(error)  # noqa: PT017
    else:
        assert float(model(x=np.array([3.0]))[0].numpy()[0]) == 7
        attached.unload("odd")


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"workers": 0}, "$.workers"),
        ({"workers": 1 << 40}, "$.workers"),
        ({"threads": 0}, "$.threads"),
        ({"idle": "soon"}, "$.idle"),
        ({"idle": "2h"}, "$.idle"),
        ({"idle": float("nan")}, "$.idle"),
        ({"idle": -1}, "$.idle"),
        ({"cores": [1 << 20]}, "$.cores"),
        ({"cores": [-1]}, "$.cores"),
        ({"repository": "/no/such/folder"}, "$.repository"),
        ({"repository": "/dev/null"}, "$.repository"),
    ],
)
def test_host_options(options: dict[str, Any], path: str) -> None:
    refused(lambda: teal.Host(**options), path)


def test_limits() -> None:
    refused(lambda: teal.Limits(slots=0), "$.limits.slots", "1 to 65536")
    refused(lambda: teal.Limits(bytes=-1), "$.limits.bytes")
    refused(lambda: teal.Limits(in_flight=1 << 62), "$.limits.in_flight", "8192")
    with pytest.raises(TypeError, match="unexpected keyword"):
        teal.Limits(tensors=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        teal.Host(worker=3)  # type: ignore[call-arg]


def test_nobody_there() -> None:
    with pytest.raises(teal.NotFound, match=r"no host listens at @teal/none .*teal serve"):
        teal.connect("@teal/none")
    for address in ("", "@", "a\0b", "x" * 200, "@" + "x" * 200):
        with pytest.raises((teal.InvalidArgument, teal.NotFound)):
            teal.connect(address)
