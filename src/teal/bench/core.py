"""The call with no Python in it: hooks into the core's own timing loops.

Both loops spin on two cores, time each round trip with the clock of the core they start on, and return ns. The echo is
the floor: one 64-byte line there and one back, no request, no validation, no kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def core(subject: str) -> Any:
    """The extension module of the Teal under measurement."""
    return import_module(f"{subject}._core")


def identity_core(subject: str, address: str, model: str, nbytes: int, n: int, core_number: int) -> list[int]:
    """n calls of the resident identity model by a client written in C++ on the given core; ns each."""
    return list(core(subject).bench_call(address, model, nbytes, n, core_number))


def echo(subject: str, nbytes: int, n: int, core_a: int, core_b: int) -> list[int]:
    """n echoes of nbytes over shared memory between two spinning threads; ns each."""
    return list(core(subject).bench_echo(nbytes, n, core_a, core_b))
