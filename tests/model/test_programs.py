"""BPF programs as producers of one ring (programs.py): each request is run once, with its own inputs, and answered; no
slot is two programs' at once, or a program's and the worker's; a worker that sleeps is woken.
"""

from __future__ import annotations

from typing import Any

import pytest

from .explore import CounterexampleError, explore
from .programs import Programs, model

CASES: dict[str, dict[str, Any]] = {
    "two programs": {"requests": 1},
    "two programs, and each comes again": {"requests": 2, "slots": 1, "places": 2},
    "three programs": {"programs": 3, "requests": 1, "slots": 1, "places": 2},
    "one leaves": {"requests": 1, "leaves": True, "late": True},
    "one slot, left and taken again": {
        "programs": 2,
        "requests": 1,
        "slots": 1,
        "places": 2,
        "leaves": True,
        "late": True,
    },
    "a late worker": {"requests": 1, "late": True, "slots": 1, "places": 2},
}

BROKEN = {
    "two programs": [
        "the place is not fetched and added",
        "published before it is filled",
        "published with a plain store",
        "looks at need_wake before it publishes",
        "a slot is taken with a plain store",
    ],
    "two programs, and each comes again": ["the generation stays"],
    "one slot, left and taken again": ["what was left is free at once"],
    "a late worker": ["released before the worker let go"],
}


@pytest.mark.parametrize("order", ["tso", "weak"])
@pytest.mark.parametrize("case", CASES)
def test_each_request_is_run_once_and_answered(case: str, order: str) -> None:
    assert explore(model(Programs(**CASES[case]), order)).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(model(Programs(**CASES[case], broken=frozenset({broken}))))


def test_a_plain_store_tears_an_entry_where_stores_may_overtake() -> None:
    broken = Programs(programs=1, requests=1, broken=frozenset({"published with a plain store"}))
    with pytest.raises(CounterexampleError, match="was not sent"):
        explore(model(broken, "weak"))


def test_a_ring_needs_more_places_than_slots() -> None:
    with pytest.raises(CounterexampleError):
        explore(model(Programs(places=1)))
