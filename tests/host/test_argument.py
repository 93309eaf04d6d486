"""Arguments of a plainly wrong type: InvalidArgument names the part and what is expected, before anything is done."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import teal


def said(call: Any, path: str, value: object, expected: str) -> None:
    with pytest.raises(teal.InvalidArgument) as caught:
        call()
    assert caught.value.path == path
    assert str(caught.value) == f"{path}: {value!r} is of type {type(value).__name__}, expected {expected}"


WHOLE = "a whole number from "


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("name", 3, "the name of a host"),
        ("name", b"x", "the name of a host"),
        ("workers", "2", WHOLE + "1 to 64"),
        ("workers", 1.5, WHOLE + "1 to 64"),
        ("workers", None, WHOLE + "1 to 64"),
        ("workers", True, WHOLE + "1 to 64"),
        ("idle", [], "a number of seconds"),
        ("idle", None, "a number of seconds"),
        ("idle", True, "a number of seconds"),
        ("threads", "x", WHOLE + "1 to 1024"),
        ("threads", 2.0, WHOLE + "1 to 1024"),
        ("cores", 1, "a list of cores such as [1, 2]"),
        ("cores", "0", "a list of cores such as [1, 2]"),
        ("limits", 5, "teal.Limits(bytes=…, …)"),
        ("limits", {"bytes": 1 << 20}, "teal.Limits(bytes=…, …)"),
        ("repository", 3, "the path of a folder"),
        ("pools", 3, "a mapping such as {'fast': {'workers': 2}}"),
    ],
)
def test_of_a_host(name: str, value: Any, expected: str) -> None:
    before = threading.active_count()
    said(lambda: teal.Host(**{name: value}), f"$.{name}", value, expected)
    assert threading.active_count() == before


def test_of_limits_and_parts() -> None:
    said(lambda: teal.Limits(slots="many"), "$.limits.slots", "many", WHOLE + "1 to 65536")  # type: ignore[arg-type]
    said(lambda: teal.Limits(slots=True), "$.limits.slots", True, WHOLE + "1 to 65536")
    said(lambda: teal.Host(cores=["0"]), "$.cores", "0", "numbers of cores such as [1, 2]")  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("arguments", "path", "value", "expected"),
    [
        ({"address": 3}, "$.address", 3, "the address of a host, or None for this user's"),
        ({"address": Path("x")}, "$.address", Path("x"), "the address of a host, or None for this user's"),
        ({"timeout": "5"}, "$.timeout", "5", "a number of seconds"),
        ({"timeout": None}, "$.timeout", None, "a number of seconds"),
    ],
)
def test_of_connect(arguments: Any, path: str, value: object, expected: str) -> None:
    said(lambda: teal.connect(**arguments), path, value, expected)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.timeout: .*, expected more than 0 seconds"):
        teal.connect(timeout=timeout)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("source", 3, "a path, builtin:NAME or package.module:function"),
        ("source", b"model.onnx", "a path, builtin:NAME or package.module:function"),
        ("kernel", 3, "onnx, openvino, torch, systems, elf, function or builtin"),
        ("version", "1", "a whole number"),
        ("version", True, "a whole number"),
        ("pool", 3, "the name of a pool"),
        ("idempotent", "yes", "True, False or None"),
        ("threads", "x", "a whole number"),
        ("idle", [], "a number of seconds"),
        ("timeout", "5s", "a number of seconds"),
        ("options", ["a"], "a mapping of names to text"),
    ],
)
def test_of_a_load(host: teal.Host, name: str, value: Any, expected: str) -> None:
    said(lambda: host.load("x", **{"source": "builtin:sum", name: value}), f"$.{name}", value, expected)


def test_names_and_parts_of_a_load(host: teal.Host) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.name: model name 3: expected 1 to 128 letters"):
        host.load(3, "builtin:sum")  # type: ignore[arg-type]
    wrong: Any = {"intra_op": 1}
    said(
        lambda: host.load("x", "builtin:sum", options=wrong),
        "$.options['intra_op']", 1, "text, as the engine takes it",
    )  # fmt: skip
    assert host.models() == []


def test_what_is_as_good_is_taken(mlp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with teal.Host(workers=np.int64(1), cores=(core,), idle=np.float32(0.001), limits=None) as host:  # type: ignore[arg-type]
        assert host.load("mlp", mlp_path, timeout=np.float64(60)).name == "mlp"


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        (5, "float32", ((5,), "float32")),
        (np.int64(5), np.int8, ((5,), "int8")),
        ([2, 3], np.dtype("f8"), ((2, 3), "float64")),
        (np.array([2, 3]), float, ((2, 3), "float64")),
        ((), ml_dtypes.bfloat16, ((), "bfloat16")),
    ],
)
def test_shapes_and_dtypes_as_numpy_takes_them(host: teal.Host, shape: Any, dtype: Any, expected: Any) -> None:
    made = host.empty(shape, dtype)
    assert (made.shape, made.dtype) == expected


def test_shapes_and_dtypes_that_are_none(host: teal.Host) -> None:
    extents = "a whole number or a sequence of them"
    for shape in (2.5, "ab", (2.5,), {2: 3}, {2}):
        said(lambda shape=shape: host.empty(shape), "$.shape", shape, extents)
    for dtype in (None, 5):
        said(lambda dtype=dtype: host.empty(2, dtype), "$.dtype", dtype, "a dtype such as 'float32' or np.float32")
    for dtype in (object, str, "S5", np.dtype(">f4"), np.dtype([("a", "f4")]), np.datetime64):
        with pytest.raises(teal.InvalidArgument, match=r"\$\.dtype: dtype .* is not one of Teal's"):
            host.empty(2, dtype)


def test_of_versions(host: teal.Host) -> None:
    for call in (host.model, host.unload, host.rollback):
        said(lambda call=call: call("echo", "1"), "$.version", "1", "a whole number")


@pytest.mark.parametrize("name", ["threads", "version", "concurrency"])
def test_numbers_that_no_message_holds(host: teal.Host, name: str) -> None:
    with pytest.raises(teal.InvalidArgument, match=rf"\$\.{name}: a number of 100 bits, expected at most 63"):
        host.load("echo", "builtin:identity", **{name: 10**30})  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", ["1s", float("nan"), float("inf")])
def test_of_waiting_for_an_event(host: teal.Host, timeout: Any) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.timeout: .*, expected seconds from now"):
        host.event().wait(timeout)


def test_what_numpy_would_convert(host: teal.Host) -> None:
    """Tables and images of other libraries: what becomes of them is for the caller to say."""

    class Frame:
        def __array__(self, dtype: object = None, copy: object = None) -> Any:
            return np.ones(3)

    class Image:
        __array_interface__ = np.ones(3).__array_interface__

    model = host.load("echo", "builtin:identity")
    for kind in (Frame, Image):
        with pytest.raises(teal.InvalidArgument, match=rf"inputs\[0\]: {kind.__name__} is no array itself; give numpy"):
            model(kind())
    assert model(np.asarray(Frame()))[0].shape == (3,)
