"""Under the role (dispatch.py, records.py), with a holder that may die after every statement: each entry of a ring
becomes one record, ends once and runs at most once (idempotent ones: again after a death); run queue, free list and
counts are whole whenever the role is free; a session can always be closed.
"""

from __future__ import annotations

from typing import Any

import pytest

from .dispatch import model
from .explore import CounterexampleError, explore
from .records import Dispatch, Entry

ONE, TWO = Entry(0), Entry(1)
URGENT = Entry(1, priority=1)
REFUSED = Entry(0, refused=True)

CASES: dict[str, dict[str, Any]] = {
    "three entries": {"entries": (ONE, TWO, Entry(2, priority=1)), "published": 3, "records": 3, "limit": 3},
    "a limit of one": {"entries": (ONE, URGENT, Entry(2)), "published": 3, "limit": 1},
    "one is cancelled": {"entries": (ONE, URGENT), "published": 2, "cancelled": (0,)},
    "a refused slot is used again": {"entries": (REFUSED, Entry(0, 2)), "published": 1, "cancelled": (1,)},
    "the model is loaded meanwhile": {
        "entries": (REFUSED, Entry(0, 2, refused=True)), "published": 1, "cancelled": (1,), "loads": True,
    },
    "a ring with two entries to spare": {
        "entries": (ONE, Entry(0, 2, refused=True), Entry(0, 3)), "published": 1, "capacity": 3,
    },
    "idempotent": {"entries": (ONE, URGENT), "published": 2, "idempotent": True},
    "two deaths": {"entries": (ONE,), "published": 1, "records": 1, "idempotent": True, "workers": 3, "deaths": 2},
    "two deaths, cancelled": {
        "entries": (ONE,), "published": 1, "records": 1, "cancelled": (0,), "workers": 3, "deaths": 2,
    },
    "the session is closed": {"entries": (ONE, URGENT), "published": 2, "records": 1, "closes": True},
    "deadlines pass": {"entries": (ONE, TWO), "published": 2, "expires": True},
}  # fmt: skip

BROKEN = {
    "three entries": [
        "nothing is repaired",
        "the free list is not rebuilt",
        "in_flight is not counted again",
        "the head is not repaired",
        "the head moves before the record exists",
        "queued before its fields",
        "heap_push() does not sift",
    ],
    "one is cancelled": ["pick() ends the record first"],
    "a refused slot is used again": ["a later generation is not told from an earlier one"],
    "the model is loaded meanwhile": ["pick() does not look at the word"],
    "idempotent": ["finish() ends the record first"],
    "two deaths, cancelled": ["a queued record keeps its worker"],
    "the session is closed": ["what is in the ring is forgotten"],
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_and_nothing_is_done_twice(case: str) -> None:
    assert explore(model(Dispatch(**CASES[case]))).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(model(Dispatch(**CASES[case], broken=frozenset({broken}))))


def test_a_ring_of_as_many_entries_as_slots_can_be_full() -> None:
    """A refused request's slot is free before its entry has left the ring, and a death leaves the tail one behind."""
    with pytest.raises(CounterexampleError, match="the ring is full"):
        explore(model(Dispatch(**{**CASES["a ring with two entries to spare"], "capacity": 2})))
