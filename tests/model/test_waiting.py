"""Chained, held and parked requests together (waiting.py): each one ends once, runs at most once, only after what it
takes has ended well, never after a cancel or with more of its name than may; none is forgotten when a stage fails, a
client leaves, a version comes and goes or the role's holder dies.
"""

from __future__ import annotations

from typing import Any

import pytest

from .explore import CounterexampleError, explore
from .waiting import Request, Waiting, model

PLAIN, FAILS = Request(), Request(fails=True)
LIMITED, LIMITED_STAGE, STAGE = Request(limited=True), Request(0, limited=True), Request(0)

CASES: dict[str, dict[str, Any]] = {
    "a pipeline of three": {"requests": (PLAIN, STAGE, Request(1))},
    "two of one name, one worker may": {"requests": (LIMITED, LIMITED)},
    "stages of a limited name": {"requests": (PLAIN, LIMITED_STAGE, LIMITED_STAGE)},
    "stages of a limited name, and a death": {"requests": (LIMITED, LIMITED_STAGE), "deaths": 1},
    "run again after a death": {"requests": (LIMITED, LIMITED), "deaths": 1, "idempotent": True},
    "a stage fails": {"requests": (FAILS, LIMITED_STAGE, Request(1))},
    "a stage fails, and a death": {"requests": (FAILS, LIMITED_STAGE), "deaths": 1},
    "parked at the start": {"requests": (PLAIN, LIMITED_STAGE), "parked": True},
    "parked at any moment": {"requests": (LIMITED, LIMITED_STAGE), "parks": 2},
    "parked, and a death": {"requests": (LIMITED,), "parked": True, "deaths": 1},
    "cancelled while it is held": {"requests": (LIMITED, LIMITED), "cancelled": (1,)},
    "cancelled while it is parked": {"requests": (PLAIN, LIMITED_STAGE), "parked": True, "cancelled": (1,)},
    "the client leaves": {"requests": (LIMITED, LIMITED, LIMITED_STAGE), "leaves": True},
    "the client leaves a parked one": {"requests": (LIMITED, LIMITED_STAGE), "parked": True, "leaves": True},
}  # fmt: skip

BROKEN = {
    "two of one name, one worker may": [
        "nobody goes on for it",
        "the limit is not looked at",
        "a held one is dropped",
        "who has ended is counted still",
    ],
    "stages of a limited name, and a death": ["repair() does not count", "repair() puts all into the run queue"],
    "run again after a death": ["requeue() leaves it counted"],
    "a stage fails": ["an end of any kind will do"],
    "parked at the start": ["nobody is told that it is wanted", "it comes back for nobody"],
    "cancelled while it is held": ["a cancelled one is run"],
    "the client leaves": ["the ring is not refused"],
}


@pytest.mark.parametrize("case", CASES)
def test_what_waits_ends_once_and_in_order(case: str) -> None:
    assert explore(model(Waiting(**CASES[case]))).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(model(Waiting(**CASES[case], broken=frozenset({broken}))))
