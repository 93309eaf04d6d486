"""Function kernels for the tests of the command line, imported by workers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import teal


@teal.signature(
    inputs={"text": ("BYTES", ("n",)), "times": ("int32", ())},
    outputs={"a/b:0": ("BYTES", ("n",)), "../a_b:0": ("int64", ("n",))},
)
def repeat(text: Any, times: Any) -> Any:
    items = [bytes(item) if isinstance(item, bytes) else str(item).encode() for item in np.asarray(text).ravel()]
    repeated = np.array([item * int(times) for item in items], object)
    return {"a/b:0": repeated, "../a_b:0": np.array([len(item) for item in repeated], np.int64)}


@teal.signature(inputs={"x": ("float32", ("n",))}, outputs={"y": ("bfloat16", ("n",))})
def narrow(x: Any) -> Any:
    return np.asarray(x).astype(ml_dtypes.bfloat16)


@teal.signature(
    inputs={"left": ("float32", ("rows", 2)), "flag": ("bool", (1,)), "free": ("float64", (None,))},
    outputs={"total": ("float64", ())},
)
def total(left: Any, flag: Any, free: Any) -> Any:
    return np.float64(left.sum() + flag.sum() + free.sum())


def fails(x: Any) -> Any:
    raise ValueError("\x1b[31mred\x1b[0m [bold]markup[/bold]")


class Slow:
    """Says in a file that it is being loaded, and takes longer than anybody waits."""

    def __init__(self) -> None:
        Path(os.environ["TOYS_MARK"]).touch()
        time.sleep(600)

    def __call__(self, x: Any) -> Any:
        return x


@teal.signature(inputs={"text": ("BYTES", ())}, outputs={"bytes": ("int64", ())})
def size(text: Any) -> Any:
    item = np.asarray(text).item()
    return np.int64(len(item if isinstance(item, bytes) else item.encode("utf-8", "surrogateescape")))
