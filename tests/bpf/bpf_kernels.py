"""Function kernels of the BPF tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import teal


@teal.signature(inputs={f"x{i}": ("float32", (1,)) for i in range(13)}, outputs={"y": ("float32", (1,))}, pure=True)
def many(**inputs: Any) -> Any:
    return np.zeros(1, np.float32)
