"""A stand-in for Teal with the API that the benches use, so that they can be tested before and without a host.

It shares nothing between processes but a file that says which models are loaded (its path is the host's address), and
computes everything in the client. Its times mean nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from os import getpid
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np

IDENTITY = [SimpleNamespace(name="x", dtype="uint8", shape=("n",))]
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


class NotFound(Exception):
    """As Teal's."""


class Tensor:
    """A numpy array in Teal's clothes."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def numpy(self) -> Any:
        return self._array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self._array, dtype)


class Prepared:
    """A prepared call that knows how long its maths took."""

    def __init__(self, model: Model, inputs: Mapping[str, Any]) -> None:
        self._model, self._inputs, self.last_run_ns = model, inputs, 0

    def __call__(self) -> Any:
        start = time.perf_counter_ns()
        answer = self._model.compute(self._inputs)
        self.last_run_ns = time.perf_counter_ns() - start
        return answer


class Model:
    """The identity, or an ONNX file run in the client."""

    def __init__(self, source: str) -> None:
        self._session = None
        self._copies = 0
        self.inputs = tuple(IDENTITY)
        if source != "builtin:identity":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self._session = onnxruntime.InferenceSession(source, options)
            self.inputs = tuple(
                SimpleNamespace(name=each.name, dtype=TYPES[each.type], shape=tuple(each.shape))
                for each in self._session.get_inputs()
            )

    def compute(self, inputs: Mapping[str, Any]) -> Any:
        if self._session is None:
            return tuple(inputs.values())
        return tuple(map(Tensor, self._session.run(None, {name: np.asarray(x) for name, x in inputs.items()})))

    def new_inputs(self, **sizes: Any) -> dict[str, Tensor]:
        made = {}
        for spec in self.inputs:
            shape = sizes.get(spec.name) or tuple(sizes.get(size, size) for size in spec.shape)
            dtype = spec.dtype
            if len(shape) == 2 and isinstance(shape[0], str):
                dtype, shape = shape
            made[spec.name] = Tensor(np.zeros(shape, dtype))
        return made

    def prepare(self, **inputs: Any) -> Prepared:
        return Prepared(self, inputs)

    def __call__(self, *arrays: Any, **inputs: Any) -> Any:
        self._copies += len(arrays)
        return self.compute(inputs or dict(zip((spec.name for spec in self.inputs), map(Tensor, arrays), strict=True)))

    def statistics(self) -> SimpleNamespace:
        return SimpleNamespace(copies_in=self._copies, copies_out=0, bytes_copied=0)


class Host:
    """Either end: the owner starts a child that stands for the worker."""

    def __init__(self, address: str | None = None, *, workers: int = 1, cores: list[int] | None = None) -> None:
        self._folder = TemporaryDirectory() if address is None else None
        self.address = address or str(Path(self._folder.name) / "models.json")
        if self._folder is not None:
            self._save({})
            self._worker = subprocess.Popen(
                [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
            )

    def _save(self, loaded: dict[str, str]) -> None:
        fresh = Path(f"{self.address}.new")
        fresh.write_text(json.dumps(loaded))
        fresh.replace(self.address)

    def _loaded(self) -> dict[str, str]:
        return json.loads(Path(self.address).read_text())

    def load(self, name: str, source: str, *, version: int | None = None, threads: int | None = None) -> None:
        self._save(self._loaded() | {name: source})

    def unload(self, name: str, version: int | None = None) -> None:
        if version is None:
            self._save({key: source for key, source in self._loaded().items() if key != name})

    def model(self, name: str) -> Model:
        if name not in self._loaded():
            raise NotFound(f"no model {name!r}")
        return Model(self._loaded()[name])

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        pass  # only attached ones are used so

    def statistics(self) -> SimpleNamespace:
        return SimpleNamespace(pid=getpid(), workers=(SimpleNamespace(pid=self._worker.pid),))

    def close(self) -> None:
        self._worker.stdin.close()
        self._worker.wait()
        self._folder.cleanup()


def connect(address: str) -> Host:
    return Host(address)
