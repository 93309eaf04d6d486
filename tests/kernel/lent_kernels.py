"""Function kernels of the pools that help each other. Workers import this module by name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import teal

PID = {"pid": ("int64", ())}


def _path(text: Any) -> Path:
    return Path(bytes(text.ravel()[0]).decode())


@teal.signature(inputs={"gate": ("BYTES", ()), "begun": ("BYTES", ())}, outputs=PID, pure=True)
def until(gate: Any, begun: Any) -> int:
    """Makes the file ``begun``, and ends when there is a file ``gate``."""
    _path(begun).touch()
    while not _path(gate).exists():
        time.sleep(0.001)
    return os.getpid()


@teal.signature(inputs={"x": ("int64", ())}, outputs=PID, pure=True)
def who(x: Any) -> int:
    return os.getpid()


@teal.signature(inputs={"x": ("int64", ())}, outputs=PID)
def impure_who(x: Any) -> int:
    return os.getpid()


@teal.signature(inputs={"n": ("int64", ())}, outputs={"y": ("int64", None)}, pure=True)
def count_up(n: Any) -> Any:
    """An output whose size only the run can tell."""
    return np.arange(int(n))


@teal.signature(inputs={"y": ("int64", ("n",))}, outputs={"sum": ("int64", ()), "pid": ("int64", ())}, pure=True)
def add_up(y: Any) -> Any:
    return int(y.sum()), os.getpid()


def _version(number: int) -> Any:
    @teal.signature(inputs={"x": ("int64", ())}, outputs={"a": ("int64", ()), "b": ("int64", ())}, pure=True)
    def twice(x: Any) -> Any:
        time.sleep(0.0005)
        return number, number

    return twice


one, two = _version(1), _version(2)


class Heavy:
    """Takes 40 MB."""

    def __init__(self) -> None:
        self.ballast = np.ones(5_000_000)

    @teal.signature(inputs={"x": ("int64", ())}, outputs=PID, pure=True)
    def __call__(self, x: Any) -> int:
        return os.getpid() * int(self.ballast[0])


class Deadly:
    """Cannot be made a second time: whoever tries is gone. The file of its option says that it was made."""

    @teal.signature(inputs={"x": ("int64", ())}, outputs=PID, pure=True)
    def __call__(self, x: Any) -> int:
        return os.getpid()

    def __init__(self) -> None:
        path = Path(os.environ["LENT_DEADLY"])
        if path.exists():
            os.kill(os.getpid(), 9)
        path.touch()
