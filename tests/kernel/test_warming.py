"""Engines' models run once on zeros (teal.kernel.warming), and what is told of how they are called."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from teal.errors import InvalidArgument
from teal.kernel.protocol import Kernel, Source, load_kernel
from teal.kernel.warming import MOST, Noted, warm


@pytest.fixture
def kernel(engine: str, wide: Path) -> Any:
    fd = os.open(wide, os.O_RDONLY)
    kernel: Kernel = load_kernel(engine, Source("m", str(wide), fd, 1))
    yield kernel
    kernel.close()
    os.close(fd)


def test_runs_on_zeros(kernel: Any) -> None:
    warm(kernel, [("float32", [2, 600])])
    warm(kernel, [("float32", [5, 600])])
    with pytest.raises(InvalidArgument):
        warm(kernel, [("float32", [2, 7])])
    told: list[Any] = []
    Noted(kernel, told.append).warm([("float32", [3, 600])])
    assert not told


class Bound:
    """A kernel that is bound, and no more."""

    name = "bound"

    def bind(self, slot: Any) -> Callable[[], None]:
        return lambda: None


def slot(*inputs: Any) -> Any:
    return SimpleNamespace(
        inputs=[None if given is None else SimpleNamespace(dtype=given[0], shape=given[1]) for given in inputs]
    )


def test_each_kind_of_inputs_is_told_of_once() -> None:
    told: list[Any] = []
    noted = Noted(Bound(), told.append)
    for rows in (1, 2, 1, 2):
        noted.bind(slot(("float32", (rows, 3)), None))
    assert told == [[("float32", [rows, 3]), None] for rows in (1, 2)]
    assert noted.name == "bound"


def test_a_few_are_enough_and_neither_large_ones_nor_strings_are_told_of() -> None:
    told: list[Any] = []
    noted = Noted(Bound(), told.append)
    noted.bind(slot(("BYTES", (3,))))
    noted.bind(slot(("float64", (1 << 30,))))
    assert not told
    for rows in range(2 * MOST):
        noted.bind(slot(("int64", (rows,))))
    assert len(told) == MOST
    assert np.prod(told[-1][0][1]) == MOST - 1
