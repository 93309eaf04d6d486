"""The call with no Python in it: hooks into the core's own timing loops.

Both loops spin on two cores, time each round trip with the clock of the core they start on, and return ns. The echo is
the floor: one 64-byte line there and one back, no request, no validation, no kernel.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


def core(subject: str) -> Any:
    """The extension module of the Teal under measurement."""
    return import_module(f"{subject}._core")


def identity_core(subject: str, address: str, model: str, nbytes: int, n: int, core_number: int) -> list[int]:
    """n calls of the resident identity model by the core's own client on the given core; ns each."""
    teal = import_module(subject)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core_number})
    try:
        with teal.connect(address) as host:
            handle = host.model(model)
            inputs = handle.new_inputs(**{handle.inputs[0].name: ("uint8", (nbytes,))})
            slot = core(subject).slot_of(inputs[handle.inputs[0].name])
            core(subject).measure_call(slot, min(n, 5_000))  # warm-up
            return list(core(subject).measure_call(slot, n))
    finally:
        os.sched_setaffinity(0, before)


def echo(subject: str, nbytes: int, n: int, core_a: int, core_b: int) -> list[int]:
    """n echoes of nbytes over shared memory between two spinning threads; ns each."""
    return list(core(subject).measure_echo(nbytes, n, core_a, core_b))
