"""A well-behaved client on a bad day: it calls all the time, and every answer is checked by value."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import watch

import teal

SIZES = (1, 7, 100, 3000)  # few, so that it needs no more memory once it has called each
SUM_OF = np.arange(1, 1001, dtype=np.float32)


def affine_model() -> bytes:
    """y = 2x + 1, float64, for a vector of any length."""
    from onnx import TensorProto, helper

    def vector(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n"])

    nodes = [helper.make_node("Mul", ["x", "two"], ["m"]), helper.make_node("Add", ["m", "one"], ["y"])]
    constants = [
        helper.make_tensor(name, TensorProto.DOUBLE, [1], [value]) for name, value in (("two", 2.0), ("one", 1.0))
    ]
    graph = helper.make_graph(nodes, "affine", [vector("x")], [vector("y")], constants)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())


def load_all(host: teal.Host, model_file: Path | None) -> None:
    """The models that the witness calls, and some for the others. Without a file: no ONNX model."""
    host.load("identity", "builtin:identity")
    host.load("sum", "builtin:sum")
    host.load("sleep", "builtin:sleep")
    host.load("square", "crash_kernels:square")
    host.load("cube", "crash_kernels:cube")
    host.load("count", "crash_kernels:count_up")
    if model_file is not None:
        host.load("affine", model_file)


Check = Callable[[np.random.Generator, int], tuple[Any, Any]]  # numbers and a size → what is given, what must come


class Witness:
    """Calls in a thread of its own. ``answers``: right ones by model; ``wrong`` and ``errors``: what else came."""

    def __init__(self, address: str, *, may_fail: Callable[[str, teal.TealError], bool] = lambda *_: False) -> None:
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.errors: list[str] = []
        self._may_fail = may_fail
        self._host = teal.connect(address)
        self._checks: dict[str, tuple[teal.Model, Check]] = {
            "identity": (self._host.model("identity"), _random_vector),
            "sum": (self._host.model("sum"), lambda *_: (SUM_OF, np.float64(500500))),
            "square": (self._host.model("square"), _mapped(lambda x: x * x)),
            "cube": (self._host.model("cube"), _mapped(lambda x: x**3)),
            "affine": (self._host.model("affine"), _mapped(lambda x: 2 * x + 1)),
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        generator = np.random.default_rng(7)
        for size in itertools.cycle(SIZES):
            for name in self._checks:
                if self._stop.is_set():
                    return
                try:
                    self._check(name, generator, size)
                except teal.TealError as error:
                    if not self._may_fail(name, error):
                        self.errors.append(f"{name}: {type(error).__name__}: {error}")
                        if len(self.errors) > 20:
                            return

    def _check(self, name: str, generator: np.random.Generator, size: int) -> None:
        model, make = self._checks[name]
        given, expected = make(generator, size)
        answer = model(given)[0].numpy()
        if answer.shape == np.shape(expected) and np.array_equal(answer, expected):
            self.answers[name] += 1
        else:
            self.wrong.append(f"{name}: {answer.shape} {answer.ravel()[:4]}, expected {np.ravel(expected)[:4]}")

    def goes_on(self) -> None:
        """Waits until each model has answered a call of each size once more."""
        before, more = Counter(self.answers), len(SIZES) + 1
        watch.until(
            lambda: self.errors or self.wrong or all(self.answers[name] > before[name] + more for name in self._checks),
            f"answers for the witness: {self.answers}",
        )
        self.verify()

    def verify(self) -> None:
        assert not self.wrong, self.wrong[:5]
        assert not self.errors, self.errors[:5]

    def close(self) -> None:
        self._stop.set()
        self._thread.join(watch.PATIENCE)
        assert not self._thread.is_alive(), "the witness waits for an answer that does not come"
        self._host.close()


@contextmanager
def watching(address: str, **options: Any) -> Iterator[Witness]:
    """A witness that must have had only right answers, and some of each model, in the end."""
    witness = Witness(address, **options)
    try:
        witness.goes_on()
        yield witness
        witness.goes_on()
    finally:
        witness.close()
    witness.verify()


def _random_vector(generator: np.random.Generator, size: int) -> tuple[Any, Any]:
    x = generator.random(size)
    return x, x


def _mapped(function: Callable[[Any], Any]) -> Check:
    def make(generator: np.random.Generator, size: int) -> tuple[Any, Any]:
        x = generator.integers(-1000, 1000, size).astype(np.float64)
        return x, function(x)

    return make
