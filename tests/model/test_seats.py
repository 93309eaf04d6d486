"""Requests between agents and workers (seats.py, seated.py): whatever an agent decides, whenever it comes, is
replaced or put off, and whoever dies at whichever statement: none is lost, none runs twice, none after it was
cancelled, none on a decision that is no longer so, and none goes on in another worker than the one that holds it.
"""

from __future__ import annotations

from typing import Any

import pytest

from .explore import CounterexampleError, Model, explore
from .seated import model
from .seats import Seats

CASES: dict[str, dict[str, Any]] = {
    "one decision": {"records": 2, "workers": 2},
    "an upgrade": {"records": 1, "workers": 2, "incarnations": 2, "decisions": 2},
    "a worker dies at every statement": {"records": 1, "deaths": 1, "decisions": 2},
    "idempotent, a worker dies": {"records": 1, "deaths": 1, "decisions": 2, "idempotent": True},
    "cancelled and expired": {"records": 1, "workers": 2, "decisions": 2, "cancels": True, "expires": True},
    "cancelled, a worker dies": {"records": 1, "deaths": 1, "decisions": 2, "cancels": True},
    "it leaves": {"records": 1, "workers": 2, "decisions": 2, "leaves": 1},
    "it leaves, and is cancelled": {"records": 1, "workers": 2, "decisions": 2, "leaves": 1, "cancels": True},
    "it leaves, and is cancelled by the host": {
        "records": 1,
        "workers": 2,
        "leaves": 1,
        "cancels": True,
        "expires": True,
    },
    "it leaves, its worker dies": {"records": 1, "deaths": 1, "decisions": 2, "leaves": 1},
    "it leaves, its worker dies, idempotent": {
        "records": 1,
        "deaths": 1,
        "decisions": 2,
        "leaves": 1,
        "idempotent": True,
    },
    "a group": {"records": 2, "workers": 2, "group": True, "cancels": True},
    "a group, its claimer dies": {"records": 2, "workers": 2, "group": True, "deaths": 1},
}

BROKEN = {
    "one decision": ["what is offered is forgotten"],
    "a worker dies at every statement": ["words are not written anew"],
    "it leaves": ["bound is not looked at", "what is suspended lies in the run queue"],
    "a group": ["the poisoned are offered no more"],
    "a group, its claimer dies": ["latched after it runs"],
}


def build(case: str, broken: frozenset[str] = frozenset()) -> Model:
    return model(Seats(**CASES[case], broken=broken))


@pytest.mark.parametrize("case", CASES)
def test_no_request_is_lost_or_runs_twice(case: str) -> None:
    assert explore(build(case)).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(build(case, frozenset({broken})))
