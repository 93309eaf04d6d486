"""Function kernels for the tests, imported by workers. See tests/conftest.py for how they find this file."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import teal

Array = np.ndarray[Any, Any]


def text_of(array: Array) -> str:
    """The one string in a BYTES input."""
    return bytes(array.ravel()[0]).decode()


# ---- plain ---------------------------------------------------------------------------------------------------------


def double(x: Array) -> Array:
    return x + x


def echo(x: Array) -> Array:
    return x


def masked(x: Array) -> Array:
    return np.ma.masked_array(x, mask=x > 0)


def add(x: Array, y: Any = 10) -> Array:
    return x + np.asarray(y)


def by_place(x: Array, /, y: Any = 10) -> Array:
    return x - np.asarray(y)


def by_name(*, x: Array, y: Any = 10) -> Array:
    return x - np.asarray(y)


def worker_pid(x: Any = 0) -> int:
    return os.getpid()


def first(x: Any) -> int:
    """A version of a model that answers 1; ``second`` is its next one."""
    return 1


def second(x: Any) -> int:
    return 2


_TWICE = teal.signature(inputs={"x": (None, None)}, outputs={"a": ("int64", ()), "b": ("int64", ())})


@_TWICE
def first_twice(x: Any) -> dict[str, int]:
    return {"a": 1, "b": 1}


@_TWICE
def second_twice(x: Any) -> dict[str, int]:
    return {"a": 2, "b": 2}


@teal.signature(inputs={"x": ("float32", ("n", 3))}, outputs={"norm": ("float32", ("n",)), "mean": ("float64", ())})
def norms(x: Array) -> Any:
    return np.linalg.norm(x, axis=1), x.mean(dtype=np.float64)


@teal.signature(inputs={"x": ("float32", ("n",))}, outputs={"y": ("float32", ("n",))}, pure=True)
def pure_double(x: Array) -> Array:
    return x + x


class Outer:
    class Inner:
        @staticmethod
        def triple(x: Array) -> Array:
            return x * 3


class Counter:
    """State that stays: adds up what it is given; close() leaves the total in a file."""

    def __init__(self) -> None:
        self.total = 0
        self.path = ""

    @teal.signature(inputs={"step": ("int64", ()), "path": ("BYTES", ())}, outputs={"total": ("int64", ())})
    def __call__(self, step: Array, path: Array) -> int:
        self.total += int(step)
        self.path = text_of(path)
        return self.total

    def close(self) -> None:
        if self.path:
            Path(self.path).write_text(str(self.total))


class Heavy:
    """Takes 40 MB, and says of itself which one it is."""

    def __init__(self) -> None:
        self.ballast = np.ones(5_000_000)
        self.made = time.monotonic_ns()

    @teal.signature(inputs={"x": ("int64", ())}, outputs={"y": ("int64", ()), "made": ("int64", ())}, pure=True)
    def __call__(self, x: Array) -> tuple[int, int]:
        return int(x + self.ballast[0]), self.made


class HeavyWithState(Heavy):
    @teal.signature(inputs={"x": ("int64", ())}, outputs={"y": ("int64", ()), "made": ("int64", ())})
    def __call__(self, x: Array) -> tuple[int, int]:
        return int(x), self.made


class HeavyAndSlow(Heavy):
    """Takes a while to be made again."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(0.2)


class Order:
    """Remembers the tags it was called with; a tag that is the path of a file to come waits for the file."""

    def __init__(self) -> None:
        self.tags: list[str] = []

    def __call__(self, tag: Array) -> Array:
        text = text_of(tag)
        if text.startswith("/"):
            wait_for(text)
        elif text == "read":
            return np.array(self.tags)
        else:
            self.tags.append(text)
        return np.array([text])


# ---- what waits ----------------------------------------------------------------------------------------------------


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.0005)


def gate(path: Array, tag: Any = 0) -> Any:
    """Has effects as far as Teal knows: waits until the file exists, then returns the tag."""
    wait_for(text_of(path))
    return np.asarray(tag)


@teal.signature(inputs={"path": ("BYTES", ()), "tag": ("int64", ())}, outputs={"tag": ("int64", ())}, pure=True)
def pure_gate(path: Array, tag: Array) -> Array:
    """The same without effects."""
    wait_for(text_of(path))
    return tag


class NeverMade:
    """Says in a file that it is being made, and is not done before anybody's patience is at an end."""

    def __init__(self) -> None:
        path = Path(os.environ.get("TEAL_TEST_MARK", os.devnull))
        path.touch()
        time.sleep(3600)

    def __call__(self, x: Array) -> Array:
        return x


class SlowToMake:
    """Takes until a file exists to be made."""

    def __init__(self) -> None:
        wait_for(os.environ["TEAL_TEST_GATE"])

    def __call__(self, x: Array) -> Array:
        return x


# ---- outputs of many kinds -----------------------------------------------------------------------------------------


@teal.signature(
    inputs={"n": ("int64", ())}, outputs={"big": ("float32", None), "count": ("int64", ()), "none": (None, None)}
)
def sized(n: Array) -> Any:
    """A big output of unknown size beside a scalar and an empty one."""
    return np.arange(int(n), dtype=np.float32), n, np.zeros((0, 3), np.int16)


def kinds(kind: Array) -> Any:
    """What a function without a signature may return."""
    return {
        "int": 5,
        "float": 2.5,
        "bool": True,
        "list": [[1, 2], [3, 4]],
        "scalar": np.float16(1.5),
        "text": "grün",
        "bytes": b"\x00\xff",
        "texts": [["a", "bc"], ["", "ü"]],
        "array of texts": np.array(["x", "yz"]),
        "empty": np.zeros((0, 5), np.uint8),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "reversed": np.arange(6)[::-1],
        "bfloat16": np.arange(3).astype(ml_dtypes.bfloat16),
        "mapping": {"output": np.arange(2)},
        "tuple of one": (np.arange(2),),
    }[text_of(kind)]


@teal.signature(inputs={"kind": ("BYTES", ())}, outputs={"y": ("float32", (2, "n")), "z": ("float32", ("n",))})
def wrong(kind: Array) -> Any:
    """What a function with a signature may not return: y is (2, 3) and z is (3,) when all is well."""
    y, z = np.zeros((2, 3), np.float32), np.zeros(3, np.float32)
    return {
        "right": (y, z),
        "right mapping": {"z": z, "y": y},
        "dtype": (y.astype(np.float64), z),
        "rank": (y.ravel(), z),
        "extent": (np.zeros((3, 3), np.float32), z),
        "symbol": (y, np.zeros(4, np.float32)),
        "big": (np.zeros((900, 900), np.float32), z),
        "none": (y, None),
        "all none": None,
        "one": y,
        "three": (y, z, z),
        "empty": (),
        "names": {"y": y, "q": z},
        "missing name": {"y": y},
        "objects": (np.array([[object()] * 3] * 2), z),
        "none inside": (np.array([[None] * 3] * 2), z),
        "strings": (np.array([["a"] * 3] * 2), z),
        "ragged": ([[1.0], [1.0, 2.0]], z),
        "byte order": (y.astype(">f4"), z),
        "datetime": (np.zeros((2, 3), "M8[s]"), z),
        "longdouble": (y.astype(np.longdouble), z),
        "object": (object(), z),
        "set": ({1.0}, z),
    }[text_of(kind)]


def torch_output(dtype: Array) -> Any:
    import torch

    return torch.tensor([[0, 1, 0], [1, 1, 1]], dtype=getattr(torch, text_of(dtype))).t()


def too_deep(x: Any) -> Array:
    return np.zeros((1,) * 9)


def text_too_deep(x: Any) -> Array:
    return np.full((1,) * 9, "a")


# ---- inputs --------------------------------------------------------------------------------------------------------


def writes(x: Array, how: Array) -> Array:
    """Tries to write to its input, which is the caller's."""
    if text_of(how) == "numpy":
        x[0] = 1
    elif text_of(how) == "setflags":
        x.setflags(write=True)
    else:
        np.add(x, 1, out=x[:])
    return x


def read_only_views(x: Array) -> list[str]:
    """Which ways to look at its input (a read-only Tensor) refuse to write."""
    tensor = x.base.obj  # type: ignore[union-attr]
    found = ["tensor"] if tensor.readonly and isinstance(tensor, teal.Tensor) else []
    found += ["memoryview"] if memoryview(tensor).readonly else []
    found += [] if tensor.numpy().flags.writeable else ["numpy"]
    found += [] if np.from_dlpack(tensor).flags.writeable else ["dlpack"]
    for name, error, use in (
        ("old dlpack", BufferError, tensor.__dlpack__),
        ("writable buffer", TypeError, lambda: (ctypes.c_char * 1).from_buffer(tensor)),
        ("setitem", ValueError, lambda: tensor.__setitem__(0, 1)),
    ):
        try:
            use()
        except error:
            found.append(name)
    return found


# ---- failures ------------------------------------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def fails(kind: Array) -> Any:
    raise {
        "value": ValueError("plain"),
        "no text": ValueError(),
        "unicode": ValueError("grün, 日本"),
        "long": ValueError("ü" * 5000),
        "surrogate": ValueError("\udcff"),
        "lines": ValueError("one\ntwo\0three"),
        "unprintable": Unprintable(),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "stop": StopIteration(),
        "teal": teal.Cancelled("mine"),
        "key": KeyError("name"),
    }[text_of(kind)]


def fails_when_negative(x: Array) -> Array:
    if x < 0:
        raise ValueError("negative")
    return x


def any_number(*numbers: Any) -> int:
    return len(numbers)


def any_name(**names: Any) -> int:
    return len(names)


async def later(x: Any) -> Any:
    return x


async def one_by_one(x: Any) -> Any:
    yield x


class NeedsMore:
    def __init__(self, missing: int) -> None:
        self.missing = missing

    def __call__(self, x: Any) -> int:
        return self.missing


class Broken:
    def __init__(self) -> None:
        raise OSError("no weights here")


@teal.signature(inputs={"a": ("float32", ())}, outputs={"y": ("float32", ())})
def mismatched(b: Array) -> Array:
    return b


NOT_CALLABLE = 5


@teal.signature(inputs={"x": ("float32", ("n",)), "path": ("BYTES", ())}, outputs={"y": ("float32", ("n",))}, pure=True)
def gated_double(x: Array, path: Array) -> Array:
    """Begins by making the file PATH.in, waits for PATH, and only then reads its input."""
    Path(text_of(path) + ".in").touch()
    wait_for(text_of(path))
    return x + x


@teal.signature(
    inputs={"out": ("float32", ("n",)), "deadline": ("float32", ("n",))}, outputs={"y": ("float32", ("n",))}
)
def awkward_names(out: Array, deadline: Array) -> Array:
    return out - deadline


# ---- hostile to the weights of others in its worker ------------------------------------------------------------------


def _mapped_model(name: str) -> tuple[int, int]:
    """Where this worker maps the sealed file of a model: (address, bytes)."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"memfd:teal:{name} " in line:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            return begin, end - begin
    raise LookupError(name)


def tamper(how: Any) -> int:
    """Tries to change the weights of the model `victim`: 0 by its file, 1 by mapping that anew, 2 in place."""
    import mmap

    begin, size = _mapped_model("victim")
    if int(how) == 2:
        ctypes.memset(begin, 0, size)  # faults
        return 0
    fd = os.open(f"/proc/self/map_files/{begin:x}-{begin + size:x}", os.O_RDWR)
    try:
        if int(how) == 0:
            os.pwrite(fd, b"changed", 0)
        else:
            mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    return 0


# ---- stages of pipelines -------------------------------------------------------------------------------------------


@teal.signature(inputs={"n": ("int64", ())}, outputs={"y": ("float32", (None,))}, pure=True)
def count_up(n: Array) -> Array:
    """An output whose size only the run can tell."""
    return np.arange(int(n), dtype=np.float32)


@teal.signature(inputs={"x": ("float32", ("n",))}, outputs={"sum": ("float64", ())}, pure=True)
def total(x: Array) -> float:
    return float(x.sum(dtype=np.float64))


@teal.signature(inputs={"x": ("float32", ("n",))}, outputs={"low": ("float32", ()), "high": ("float32", ())}, pure=True)
def ends(x: Array) -> Any:
    return x.min(), x.max()


@teal.signature(inputs={"text": ("BYTES", (None,))}, outputs={"words": ("BYTES", (None,))}, pure=True)
def words(text: Array) -> Array:
    return np.array([word for line in text.ravel() for word in bytes(line).split()], dtype=object)


@teal.signature(inputs={"words": ("BYTES", (None,))}, outputs={"count": ("int64", ())}, pure=True)
def how_many(words: Array) -> int:
    return len(words)


@teal.signature(inputs={"path": ("BYTES", (None,))}, outputs={"pid": ("int64", ())}, pure=True)
def dies_once(path: Array) -> int:
    """Dies when the file does not exist, having made it."""
    file = Path(text_of(path))
    if not file.exists():
        file.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


# ---- what runs together --------------------------------------------------------------------------------------------


@teal.signature(
    inputs={"x": ("float32", ("batch", "n"))},
    outputs={"y": ("float32", ("batch", "n")), "rows": ("int64", ("batch",))},
    pure=True,
)
def rowwise(x: Array) -> Any:
    """Twice each row, and how many rows there were in the run; fails at a negative number."""
    if (x < 0).any():
        raise ValueError("a negative number")
    return x * 2, np.full(len(x), len(x))


@teal.signature(inputs={"x": ("float32", ("batch", 2))}, outputs={"y": ("float32", ("batch", 2))}, pure=True)
def deadly(x: Array) -> Array:
    """Takes its worker with it at a negative number."""
    if (x < 0).any():
        os.kill(os.getpid(), signal.SIGKILL)
    return x + 1
