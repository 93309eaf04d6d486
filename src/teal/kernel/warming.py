"""Models that have run before they are asked: what a worker was called with, and the same once for one that stands by.

Theory of operation: much of what an engine prepares it prepares at the first run with inputs of some shape (kernels for
these shapes, weights in their order, memory for what lies between): several times what a run takes. So a worker says
which shapes its models are called with, a few for each, and a spare worker (spares.py) runs each of them once, on
zeros, before it takes anybody's place. Engines' models have no state, so nobody can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from teal import _core

if TYPE_CHECKING:
    import numpy as np

Inputs = list[tuple[str, list[int]] | None]  # dtype and shape of each input; None: not given

MOST = 4  # shapes of a model that are told of
_MOST_BYTES = 64 << 20


class Noted:
    """A kernel whose first few kinds of inputs are told of as they are bound."""

    def __init__(self, kernel: Any, tell: Callable[[Inputs], None]) -> None:
        self._kernel = kernel
        self._tell = tell
        self._told: list[Inputs] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def bind(self, slot: _core.WorkerSlot) -> Any:
        """As the kernel does."""
        bound = self._kernel.bind(slot)
        if len(self._told) < MOST:
            inputs: Inputs = [None if tensor is None else (tensor.dtype, list(tensor.shape)) for tensor in slot.inputs]
            if inputs not in self._told and _bytes(inputs) <= _MOST_BYTES:
                self._told.append(inputs)
                self._tell(inputs)
        return bound

    def warm(self, inputs: Inputs) -> None:
        """Runs it once on zeros; nobody is told of these. Raises what it does."""
        self._told.append(inputs)
        warm(self._kernel, inputs)


def _bytes(inputs: Inputs) -> float:
    """Of all; infinite with strings, which zeros are none of."""
    there = [given for given in inputs if given is not None]
    if any(dtype == "BYTES" for dtype, _ in there):
        return math.inf
    return sum(math.prod(shape) * _core.dtype_size(dtype) for dtype, shape in there)


class _Zeros:
    """An input in memory of its own, as an engine's kernel sees a tensor."""

    def __init__(self, dtype: str, shape: Sequence[int]) -> None:
        import ml_dtypes
        import numpy as np

        self.dtype, self.shape = dtype, tuple(shape)
        self._array = np.zeros(self.shape, getattr(ml_dtypes, dtype, dtype))
        self.nbytes, self.address = self._array.nbytes, self._array.ctypes.data

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._array


class _Slot:
    """A slot whose outputs the engine makes."""

    def __init__(self, inputs: Inputs, outputs: int) -> None:
        self.inputs = [None if given is None else _Zeros(*given) for given in inputs]
        self.outputs = self.rooms = [None] * outputs
        self.wanted = [True] * outputs

    def count_copy_in(self, nbytes: int) -> None:
        """Nobody's."""

    def count_copy_out(self, nbytes: int) -> None:
        """Nobody's."""


def warm(kernel: Any, inputs: Inputs) -> None:
    """Runs an engine's kernel once on zeros. Raises what it does."""
    kernel.bind(_Slot(inputs, len(kernel.outputs)))()
