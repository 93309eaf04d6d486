"""The call in-process: an onnxruntime session of one's own, used in the fastest way that engine offers.

Inputs and outputs are bound once per padded length to arrays that are reused, as Teal does for a resident model, so
that the comparison shows the cost of being in another process and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from teal.demo.embedder import INPUTS, OUTPUT, THREADS, WIDTH, check_model


def session(path: Path) -> Any:
    """A CPU session on the model file with THREADS threads. Raises InvalidArgument for a model of another kind."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    made = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    check_model({spec.name: spec.type.removeprefix("tensor(").removesuffix(")") for spec in made.get_inputs()})
    return made


class LocalCall:
    """`call(**arrays)` on a session; the answer is an array that the next call of the same length overwrites."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._bound: dict[tuple[int, ...], tuple[dict[str, npt.NDArray[np.int64]], npt.NDArray[np.float32], Any]] = {}

    def __call__(self, **arrays: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        shape = arrays[INPUTS[0]].shape
        views, output, binding = self._bound.get(shape) or self._bind(shape)
        for name, view in views.items():
            view[...] = arrays[name]
        self._engine.run_with_iobinding(binding)
        return output

    def _bind(self, shape: tuple[int, ...]) -> tuple[dict[str, npt.NDArray[np.int64]], npt.NDArray[np.float32], Any]:
        binding = self._engine.io_binding()
        views = {name: np.zeros(shape, np.int64) for name in INPUTS}
        output = np.zeros((*shape, WIDTH), np.float32)
        for name, view in views.items():
            binding.bind_input(name, "cpu", 0, np.int64, view.shape, view.ctypes.data)
        binding.bind_output(OUTPUT, "cpu", 0, np.float32, output.shape, output.ctypes.data)
        self._bound[shape] = (views, output, binding)
        return self._bound[shape]
