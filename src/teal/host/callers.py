"""What clients see of their calls, by model: copies, and how long copying, waking and the whole call took.

Clients write these numbers in their own shared memory (core/host/session.hpp); the host adds them up over the sessions
there are and those that have gone. They are for people: nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from teal.host.records import merged

STAGES = ("copy", "wake", "total")
_COUNTERS = ("requests", "copies_in", "bytes_in", "direct", "relayed")

Numbers = dict[str, Any]  # _COUNTERS: int; STAGES: list of (ns, count)


def summed(many: Iterable[Mapping[str, Any]]) -> Numbers:
    """One set of numbers out of several."""
    every = list(many)
    # A client may have written anything: what travels in a message must stay below 2^64.
    total: Numbers = {name: min(sum(numbers[name] for numbers in every), 1 << 63) for name in _COUNTERS}
    total.update({name: merged(*(numbers[name] for numbers in every)) for name in STAGES})
    return total


def by_model(sessions: Iterable[Mapping[int, Mapping[str, Any]]]) -> dict[int, Numbers]:
    """Sums over sessions, for each model index."""
    collected: dict[int, list[Mapping[str, Any]]] = {}
    for session in sessions:
        for model, numbers in session.items():
            collected.setdefault(model, []).append(numbers)
    return {model: summed(many) for model, many in collected.items()}
