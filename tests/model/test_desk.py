"""A worker's desk (desk.py): a decision is carried out whole, once, by one of those who may claim it, or not at all;
not after it was taken back, not after its agent was put off; whoever dies, the desk goes on.
"""

from __future__ import annotations

from typing import Any

import pytest

from .desk import Desk, model
from .explore import CounterexampleError, explore

CASES: dict[str, dict[str, Any]] = {
    "more decisions than slots": {"serials": 4},
    "one slot": {"serials": 3, "depth": 1},
    "the agent is put off": {"serials": 2, "put_off": True},
    "a worker dies at every step": {"serials": 2, "workers": 2},
    "agent and worker die": {"serials": 2, "workers": 2, "agent_dies": True},
    "two workers die": {"serials": 2, "depth": 1, "workers": 3, "withdraws": False},
    "a worker dies, the agent is put off": {"serials": 2, "workers": 2, "put_off": True, "withdraws": False},
    "somebody writes into a slot": {"serials": 2, "liar": True, "withdraws": False},
}

BROKEN = {
    "more decisions than slots": [
        "ready before the rest is written",
        "publish() stores relaxed",
        "room() believes that there is some",
        "next_serial moves before its slot is committed",
        "take_up() does not compare",
        "withdraw() does not compare",
        "what was taken back is not passed by",
    ],
    "the agent is put off": ["check() does not look at the seat", "the desk is voided first"],
    "somebody writes into a slot": ["the desk is read again"],
}


@pytest.mark.parametrize("case", CASES)
def test_a_decision_is_carried_out_whole_and_once(case: str) -> None:
    assert explore(model(Desk(**CASES[case]))).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(model(Desk(**CASES[case], broken=frozenset({broken}))))
