"""A test double of `teal` for the demo's processes: the Python API the demo uses, run by onnxruntime in-process.

Put the folder above this one first in PYTHONPATH and `import teal` is this module, with the real subpackages behind it:
the demo then runs end to end with no core, no worker and no shared memory, and can be made to fail on purpose.
TEAL_DOUBLE says how: "differ" (answers off by a little), "die" (the process ends at its fifth call), "refuse" (connect
fails). It proves nothing about Teal itself.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np

__path__.append(str(Path(__file__).resolve().parents[4] / "src" / "teal"))

_FAULT = os.environ.get("TEAL_DOUBLE", "")


class Tensor:
    """An array that answers to `numpy()`."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def numpy(self) -> np.ndarray:
        return self._array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array


class Outputs(tuple[Tensor, ...]):
    """A tuple that also takes names."""

    names: tuple[str, ...] = ()

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)


class Model:
    """The part of `teal.Model` that the demo uses."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._engine = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._calls = 0
        self.inputs = tuple(
            SimpleNamespace(name=spec.name, dtype="int64", shape=spec.shape) for spec in self._engine.get_inputs()
        )
        self.outputs = tuple(
            SimpleNamespace(name=spec.name, dtype="float32", shape=spec.shape) for spec in self._engine.get_outputs()
        )

    def new_inputs(self, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
        return {name: Tensor(np.full(shape, 1 << 40, np.int64)) for name, shape in shapes.items()}

    def prepare(self, **inputs: Tensor) -> Any:
        return lambda: self(**{name: tensor.numpy() for name, tensor in inputs.items()})

    def __call__(self, **inputs: Any) -> Outputs:
        self._calls += 1
        if _FAULT == "die" and self._calls == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        arrays = self._engine.run(None, {name: np.asarray(value) for name, value in inputs.items()})
        outputs = Outputs(Tensor(array + np.float32(0.01 if _FAULT == "differ" else 0.0)) for array in arrays)
        outputs.names = tuple(spec.name for spec in self.outputs)
        return outputs

    def statistics(self) -> Any:
        histogram = SimpleNamespace(count=0, p50_us=0.0, p99_us=0.0, p999_us=0.0, max_us=0.0)
        stages = dict.fromkeys(("queue", "run", "copy", "wake", "total"), histogram)
        return SimpleNamespace(requests=0, copies_in=0, copies_out=0, bytes_copied=0, stages=stages)


class Host:
    """A host that is only an address: the path of the model, which whoever connects loads for itself."""

    def __init__(self, address: str = "") -> None:
        self.address = address

    def load(self, name: str, source: Any, *, threads: int | None = None) -> Model:
        self.address = str(source)
        return Model(Path(source))

    def model(self, name: str) -> Model:
        return Model(Path(self.address))

    def close(self) -> None:
        pass

    def __enter__(self) -> Host:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def connect(address: str) -> Host:
    """Attach to the host at `address`."""
    if _FAULT == "refuse":
        from teal.errors import Closed

        raise Closed("the host is shutting down")
    return Host(address)
