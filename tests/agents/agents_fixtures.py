"""What the tests of agents share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import teal

ODD = Path(__file__).parent / "odd_policies.py"


def odd(name: str, **settings: object) -> str:
    """The spec of one of odd_policies.py."""
    words = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{ODD}:{name}" + (f":{words}" if words else "")


def until(found: Callable[[], Any]) -> Any:
    """What ``found`` gives once it gives something. No bound of its own: pytest ends a test after ten minutes."""
    while not (value := found()):
        time.sleep(0.005)
    return value


def right(model: teal.Model, count: int, start: int = 0) -> None:
    """So many calls, some at once, each with its own answer."""
    futures = [model.submit(np.full(4, i)) for i in range(start, start + count)]
    for i, future in enumerate(futures, start):
        assert (np.asarray(future.result()) == i).all()


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
