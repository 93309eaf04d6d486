"""No request of a line is lost or run twice while the resident kernel parks, is woken, and learns of a new line (park.py)."""

from __future__ import annotations

import pytest

from .explore import CounterexampleError, explore
from .park import model

# What must be found when a line is broken, and in which memory model it shows first.
BROKEN = {
    "ask() does not fence": ("tso", "stuck for ever"),
    "the kernel does not fence": ("tso", "stuck for ever"),
    "the lines are not looked at again": ("tso", "stuck for ever"),
    "the lines are looked at before parked is stored": ("tso", "stuck for ever"),
    "a new version is not looked at": ("tso", "stuck for ever"),
    "parked is not stored": ("tso", "stuck for ever"),
    "parked is not taken back": ("tso", "stuck for ever|runs twice|taken for lost"),
    "wake() takes a parked kernel for awake": ("tso", "stuck for ever"),
    "wake() looks at the event last": ("tso", "taken for lost"),
    "wake() does not wait for the end": ("tso", "taken for lost|stuck for ever|runs twice"),
    "the ledger is not kept": ("tso", "runs twice"),
    "the reply is stored before the output": ("tso", "an output of an earlier run"),
    "the input is stored after the request": ("tso", "an output of an earlier run"),
}


@pytest.mark.parametrize("order", ["sc", "tso", "weak"])
def test_every_request_is_run_once_and_answered(order: str) -> None:
    assert explore(model(order=order)).ends > 0


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_line_is_found(broken: str) -> None:
    order, problem = BROKEN[broken]
    with pytest.raises(CounterexampleError, match=problem):
        explore(model(frozenset({broken}), order=order))
