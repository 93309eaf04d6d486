"""Kernels that the attacks are made on."""

from __future__ import annotations

from typing import Any

import numpy as np

import teal


@teal.signature(inputs={"texts": ("BYTES", ("n",))}, outputs={"lengths": ("int64", None)}, pure=True)
def lengths(texts: Any) -> Any:
    return np.array([len(text) for text in texts], np.int64)
