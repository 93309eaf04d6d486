"""Function kernels that the bad days are made of. Workers import this module by name."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import teal


@teal.signature(inputs={"x": ("float64", ("n",))}, outputs={"y": ("float64", ("n",))}, pure=True)
def square(x: Any) -> Any:
    return x * x


@teal.signature(inputs={"x": ("float64", ("n",))}, outputs={"y": ("float64", ("n",))})
def cube(x: Any) -> Any:
    """Not declared pure: never run again after its worker died."""
    return x**3


@teal.signature(inputs={"n": ("int64", ())}, outputs={"y": ("float64", None)}, pure=True)
def count_up(n: Any) -> Any:
    """An output whose size nobody can know before. Liars ask for any: what would take all memory is refused."""
    if int(n) > 1 << 22:
        raise ValueError(f"{n} are too many")
    return np.arange(int(n), dtype=np.float64)


def note(path: Any, line: Any, microseconds: Any) -> Any:
    """Appends a line to a file, then sleeps: an effect that can be noticed."""
    with open(_text(path), "a") as file:
        file.write(_text(line) + "\n")
    time.sleep(int(microseconds) / 1e6)
    return np.int64(os.getpid())


@teal.signature(inputs={"path": ("BYTES", ()), "how": ("BYTES", ())}, outputs={"pid": ("int64", ())}, pure=True)
def die_once(path: Any, how: Any) -> Any:
    """Dies the first time (when ``path`` does not exist), answers the second time."""
    file = Path(_text(path))
    if not file.exists():
        file.touch()
        end(_text(how))
    return np.int64(os.getpid())


@teal.signature(inputs={"how": ("BYTES", ())}, outputs={"pid": ("int64", ())})
def misbehave(how: Any) -> Any:
    """What its argument says, and else answers with the worker's process number."""
    match _text(how):
        case "raise":
            raise ValueError("on purpose")
        case "nothing":
            return None
        case "text":
            return "nonsense"
        case "shape":
            return np.zeros((3, 3), np.int64)
        case "dtype":
            return np.float32(1.5)
        case "object":
            return np.array([object()], dtype=object)
        case "many":
            return (1, 2, 3)
        case "hang":
            while True:
                time.sleep(3600)
        case "fork":
            parent = os.getpid()
            os.fork()
            return np.int64(parent)
        case "fork and raise":
            if os.fork() == 0:
                raise ValueError("in the child, on purpose")
        case "leave a child":
            child = os.fork()
            if child == 0:
                time.sleep(3600)
            return np.int64(child)
        case word:
            end(word)
    return np.int64(os.getpid())


@teal.signature(inputs={"x": ("float64", ("n",)), "how": ("BYTES", ())}, outputs={"y": ("float64", ("n",))})
def mortal(x: Any, how: Any) -> Any:
    """Doubles, unless it dies of what ``how`` says."""
    end(_text(how))
    return x + x


def end(how: str) -> None:
    """Ends this process by exit:STATUS, signal:NUMBER or segfault; any other word does nothing."""
    kind, _, number = how.partition(":")
    if kind == "exit":
        os._exit(int(number))
    elif kind == "signal":
        os.kill(os.getpid(), int(number))
        time.sleep(3600)
    elif kind == "segfault":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(0)


class DeadlyAtLoad:
    """Kills the worker that makes it resident."""

    def __init__(self) -> None:
        end("exit:3")

    def __call__(self, x: Any) -> Any:
        return x


class ForksAtLoad:
    """Two processes come back from making it resident."""

    def __init__(self) -> None:
        os.fork()

    def __call__(self, x: Any) -> Any:
        return np.int64(os.getpid())


class DeadlyIfFile:
    """Kills the worker that makes it resident, while the file that CRASH_KERNELS_TRAP names exists."""

    def __init__(self) -> None:
        if os.path.exists(os.environ["CRASH_KERNELS_TRAP"]):
            end("signal:9")

    def __call__(self, x: Any) -> Any:
        return x


class SlowToLoad:
    """Takes as long to load as CRASH_KERNELS_GATE does not exist."""

    def __init__(self) -> None:
        while not os.path.exists(os.environ["CRASH_KERNELS_GATE"]):
            time.sleep(0.005)

    def __call__(self, x: Any) -> Any:
        return x


class RaisesAtLoad:
    def __init__(self) -> None:
        raise RuntimeError("no such weights")

    def __call__(self, x: Any) -> Any:
        return x


def _text(value: Any) -> str:
    item = np.asarray(value).reshape(-1)[0]
    return item.decode() if isinstance(item, bytes) else str(item)
