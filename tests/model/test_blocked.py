"""Requests that wait for others (blocked.py): each one ends, runs at most once, and only after everything it waits for
has ended well; whoever sleeps is woken for it; deaths of the role's holder lose none.
"""

from __future__ import annotations

from typing import Any

import pytest

from .blocked import Blocked, Request, model
from .explore import CounterexampleError, explore

A, B, C = Request(0), Request(1, after=((0, 1),)), Request(2, after=((0, 1), (1, 1)))
FAILS = Request(0, fails=True)
AGAIN = Request(0, 2)
ON_EVENT = Request(1, after=((9, 1),))
TWO_ON_EVENT = (Request(0, after=((9, 1),)), Request(1, after=((9, 1),)), Request(2, after=((0, 1),)))

CASES: dict[str, dict[str, Any]] = {
    "a row of three": {"requests": (A, B, C)},
    "a row, and a death": {"requests": (A, B), "workers": 2, "deaths": 1},
    "the first fails": {"requests": (FAILS, B, C), "workers": 2},
    "the first fails, and a death": {"requests": (FAILS, B), "workers": 2, "deaths": 1},
    "the line is used again": {"requests": (FAILS, B, AGAIN), "cancelled": (2,)},
    "an event": {"requests": (ON_EVENT,), "events": (9,), "workers": 2},
    "an event, and a death": {"requests": (ON_EVENT,), "events": (9,), "workers": 2, "deaths": 1},
    "an event that two wait for": {"requests": TWO_ON_EVENT, "events": (9,), "workers": 1},
    "an event that is given up": {"requests": TWO_ON_EVENT, "events": (9,), "given_up": (9,)},
    "cancelled while it waits": {"requests": (A, ON_EVENT), "events": (9,), "silent": (9,), "cancelled": (1,)},
    "cancelled, and a death": {
        "requests": (ON_EVENT,), "events": (9,), "silent": (9,), "cancelled": (0,), "workers": 2, "deaths": 1,
    },
    "what is waited for is cancelled": {"requests": (A, B), "cancelled": (0,), "workers": 2},
}  # fmt: skip

BROKEN = {
    "a row, and a death": ["repair() puts all into the run queue", "blocked records are not put back"],
    "the first fails": ["an end of any kind will do"],
    "the first fails, and a death": ["the record ends first"],
    "the line is used again": ["a line that is waited for is used again"],
    "an event": ["signal() does not ring", "nobody looks at what is blocked"],
    "an event that two wait for": ["the hole is not filled"],
    "cancelled while it waits": ["cancel() does not ring", "a cancelled one is not looked at"],
}


@pytest.mark.parametrize("case", CASES)
def test_what_waits_runs_after_what_it_waits_for(case: str) -> None:
    assert explore(model(Blocked(**CASES[case]))).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(model(Blocked(**CASES[case], broken=frozenset({broken}))))
