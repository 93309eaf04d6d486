"""A pool dealt out to two agents (dealing.py): whichever agent a request is dealt to, whoever takes it over, whenever
one of the agents is replaced, put off or comes again, and at whichever statement a worker dies: none is lost, none runs
twice, none after it was cancelled, none on another agent's decision, and each agent is told of what is its own.
"""

from __future__ import annotations

from typing import Any

import pytest

from .dealing import Dealing, model
from .explore import CounterexampleError, Model, explore

BOTH = (("seat", 0), ("seat", 1))
CASES: dict[str, dict[str, Any]] = {
    "two agents": {"script": BOTH},
    "two requests": {"script": BOTH, "records": 2, "takes": 0, "workers": 2, "deciders": (1,)},
    "one dies": {"script": (*BOTH, ("off", 0))},
    "one dies and comes again": {"script": (*BOTH, ("off", 0), ("seat", 0)), "deciders": (2, 3)},
    "one is upgraded": {"script": (*BOTH, ("seat", 0)), "deciders": (1, 3)},
    "cancelled": {"script": BOTH, "cancels": True},
    "it leaves": {"script": BOTH, "leaves": 1},
    "it leaves, and is cancelled": {"script": BOTH, "workers": 1, "leaves": 1, "cancels": True},
    "it leaves while an agent comes": {
        "script": (("seat", 1), ("seat", 0)),
        "workers": 1,
        "dealt": 1,
        "leaves": 1,
        "cancels": True,
    },
    "a worker dies at every statement": {"script": BOTH, "deaths": 1, "dealt": 1, "deciders": ()},
    "idempotent, a worker dies": {"script": BOTH, "deaths": 1, "idempotent": True, "deciders": (1,), "takes": 0},
    "it leaves, its worker dies, idempotent": {
        "script": BOTH,
        "deaths": 1,
        "leaves": 1,
        "idempotent": True,
        "deciders": (),
        "takes": 0,
    },
    "an agent and a worker die": {"script": (("seat", 0), ("off", 0), ("seat", 1)), "deaths": 1, "takes": 0},
}

BROKEN = {
    "two agents": ["who takes it is not told", "who has it is not told that it is taken"],
    "one dies": ["what it was dealt stays with it"],
    "it leaves while an agent comes": [
        "who had it is not told when it leaves",
        "only the worker's seat hears of the end",
    ],
    "a worker dies at every statement": ["words are not written anew"],
    "idempotent, a worker dies": ["who had it is not told when it runs anew"],
}


def build(case: str, broken: frozenset[str] = frozenset()) -> Model:
    return model(Dealing(**CASES[case], broken=broken))


@pytest.mark.parametrize("case", CASES)
def test_each_request_is_one_agents(case: str) -> None:
    assert explore(build(case)).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(build(case, frozenset({broken})))
