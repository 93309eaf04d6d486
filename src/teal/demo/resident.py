"""The call on a model that is resident in Teal: buffers made once per padded length, filled in place, nothing copied.

This file, `run.hosted`, and one `teal.connect` each in `client` and `compare` are all that uses Teal itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from teal.demo.embedder import INPUTS, OUTPUT, check_model

if TYPE_CHECKING:
    from teal import Model


class ResidentCall:
    """`call(**arrays)` on a `teal.Model`; the answer is a view that the next call of the same length overwrites.

    `fill_us` and `call_us` say where the last call's time went: writing the inputs into shared memory (and, the first
    time at a length, making and binding the buffers), and the call itself.
    """

    def __init__(self, model: Model) -> None:
        check_model({spec.name: str(spec.dtype) for spec in model.inputs})
        self.fill_us = 0.0
        self.call_us = 0.0
        self._model = model
        self._bound: dict[tuple[int, ...], tuple[dict[str, npt.NDArray[np.int64]], Any]] = {}

    def __call__(self, **arrays: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        start = time.perf_counter()
        shape = arrays[INPUTS[0]].shape
        views, prepared = self._bound.get(shape) or self._bind(shape)
        for name, view in views.items():
            view[...] = arrays[name]
        filled = time.perf_counter()
        outputs = prepared()
        self.fill_us = (filled - start) * 1e6
        self.call_us = (time.perf_counter() - filled) * 1e6
        return np.asarray(outputs[OUTPUT].numpy())

    def _bind(self, shape: tuple[int, ...]) -> tuple[dict[str, npt.NDArray[np.int64]], Any]:
        tensors = self._model.new_inputs(**dict.fromkeys(INPUTS, shape))
        views = {name: tensors[name].numpy() for name in INPUTS}
        for view in views.values():
            view[...] = 0  # an id that is not in the vocabulary, left over in fresh memory, must never reach the model
        self._bound[shape] = (views, self._model.prepare(**tensors))
        return self._bound[shape]
