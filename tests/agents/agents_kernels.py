"""A kernel of the tests of agents. Workers import this file by its name."""

from __future__ import annotations

from typing import Any

import teal


@teal.signature(inputs={"x": ("int64", ("rows", 4))}, outputs={"y": ("int64", ("rows", 4))}, pure=True)
def twice(x: Any) -> Any:
    """Row by row, so that rows of several requests may run together; takes a while."""
    for _ in range(200):
        x = x + 1
    return (x - 200) * 2
