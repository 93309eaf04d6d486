"""Kernels that the attacks are made on."""

from __future__ import annotations

from typing import Any

import numpy as np

import teal


@teal.signature(inputs={"texts": ("BYTES", ("n",))}, outputs={"lengths": ("int64", None)}, pure=True)
def lengths(texts: Any) -> Any:
    return np.array([len(text) for text in texts], np.int64)


@teal.signature(inputs={"x": ("float32", ("n", 3))}, outputs={"y": ("float32", ("n",))}, pure=True)
def norm(x: Any) -> Any:
    return np.linalg.norm(x, axis=1)


@teal.signature(
    inputs={"a": ("float32", ("n", 3)), "b": ("float32", ("n", "m"))},
    outputs={"y": ("float32", ("n", None))},
    pure=True,
)
def join(a: Any, b: Any) -> Any:
    return np.concatenate([a, b], axis=1)
