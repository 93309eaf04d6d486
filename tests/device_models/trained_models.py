"""Model files with random weights, and calls of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import teal
from teal.kernel.systems import LOADS, file, reference


class Trained:
    """A model file with random weights, inputs for it, and what is to come out."""

    def __init__(self, folder: Path, load: str, seed: int = 0) -> None:
        self.load, self._rng = load, np.random.default_rng(seed)
        known = LOADS[load]
        self.tensors = {name: self._weights(known.weights, shape) for name, shape in known.tensors.items()}
        if "std" in self.tensors:
            self.tensors["std"] = np.abs(self.tensors["std"]) + np.float32(0.5)
        self.path = folder / f"{load}-{seed}.safetensors"
        file.save(self.path, load, self.tensors)

    def _weights(self, dtype: str, shape: tuple[int, ...]) -> Any:
        if dtype == "int64":
            return self._rng.integers(-40, 40, shape, dtype=np.int64)
        return (self._rng.normal(size=shape) / max(1, shape[0]) ** 0.5).astype(dtype)

    def inputs(self, batch: int) -> Any:
        known = LOADS[self.load]
        if known.input == "float32":
            return self._rng.normal(size=(batch, known.columns)).astype(np.float32)
        return self._rng.integers(0, 10, (batch, known.columns)).astype(known.input)

    def check(self, outputs: Any, x: Any) -> None:
        scores, verdict = reference.REFERENCES[self.load](self.tensors, x)
        found = np.asarray(outputs["scores"])
        if found.dtype == np.int64:
            assert (found == scores).all()
            assert (np.asarray(outputs["verdict"]) == verdict).all()
        else:
            np.testing.assert_allclose(found, scores, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(scores).max())))


def prepared(model: teal.Model, x: Any) -> tuple[Any, Any]:
    """A prepared call on tensors of the host, and its input's array."""
    inputs = model.new_inputs(batch=len(x))
    array = np.asarray(inputs["x"])
    array[:] = x
    return model.prepare(**inputs), array


def direct_calls(call: Any, model: teal.Model, wanted: int = 20) -> int:
    """Calls until so many went directly; a machine that is busy parks kernels. Returns how many did."""
    for _ in range(200):
        if model.statistics().paths["direct"] >= wanted:
            break
        for _ in range(10):
            call()
    return model.statistics().paths["direct"]
