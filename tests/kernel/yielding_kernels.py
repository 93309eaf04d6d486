"""Generator functions as kernels, for test_preemption.py: what they did is kept in the worker, and can be asked for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

import teal

Steps = Generator[Any, None, Any]
_ended: list[str] = []


def total(n: Any) -> Steps:
    found = 0
    for i in range(int(n)):
        found += i
        if i % 16 == 0:
            yield "nobody hears this"
    return np.int64(found)


@teal.signature(inputs={"n": ("int64", ())}, outputs={"n": ("int64", ()), "square": ("int64", ())}, pure=True)
def squared(n: Any) -> Steps:
    yield
    return {"n": np.int64(n), "square": np.int64(n) * np.int64(n)}


def words(texts: Any) -> Steps:
    yield
    return [text.upper() for text in texts]


class Held:
    """Waits for a file, at yields, and says how it came out of it."""

    def __call__(self, path: Any) -> Steps:
        name = bytes(path).decode()
        Path(name + ".begun").touch()
        try:
            while not Path(name).exists():
                yield
            return np.int64(1)
        except GeneratorExit:
            _ended.append("closed")
            raise
        finally:
            _ended.append("finally")
            Path(name + ".left").touch()


@teal.signature(inputs={"path": (None, None)}, outputs={"output": ("int64", ())}, pure=True)
def held_purely(path: Any) -> Steps:
    return (yield from Held()(path))


def stubborn(path: Any) -> Steps:
    name = bytes(path).decode()
    try:
        while not Path(name).exists():
            yield
    finally:
        Path(name + ".left").touch()
        yield  # a generator that is being closed may not
    return np.int64(1)


def ended() -> Any:
    return np.array(_ended or ["nothing"], dtype=object)


def raises(n: Any) -> Steps:
    yield
    if n > 0:
        raise ValueError(f"{int(n)} is too much")
    return np.int64(0)


def returns_nothing(n: Any) -> Steps:
    yield n


def long_spin(seconds: Any) -> Any:
    """No generator: runs to its end."""
    until = float(seconds)
    event = threading.Event()
    event.wait(until)
    return np.float64(until)


class Interrupted:
    """Counts its own process's signals, as a kernel with a handler of its own would."""

    def __init__(self) -> None:
        self.seen = 0

    def _heard(self, *_: Any) -> None:
        self.seen += 1

    def __call__(self, count: Any) -> Any:
        signal.signal(signal.SIGUSR1, self._heard)  # here, and not where it is made: that is another thread
        before = self.seen
        for _ in range(int(count)):
            os.kill(os.getpid(), signal.SIGUSR1)
        return np.int64(self.seen - before)


def process() -> Any:
    return np.int64(os.getpid())
