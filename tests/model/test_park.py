"""No request of a line is lost or run twice while the resident kernel parks, is woken, and learns of a new line
(park.py)."""

from __future__ import annotations

import pytest

from .explore import CounterexampleError, explore
from .park import model

CASES = {
    "two lines, one asked twice, stores seen at once": ("sc", (2, 1)),
    "two lines": ("tso", (1, 1)),
    "one line asked twice": ("tso", (2, 0)),
    "one line asked twice, weaker stores": ("weak", (2, 0)),
}

# What must be found when a line is broken.
BROKEN = {
    "ask() does not fence": "stuck for ever",
    "the kernel does not fence": "stuck for ever",
    "the lines are not looked at again": "stuck for ever",
    "the lines are looked at before parked is stored": "stuck for ever",
    "a new version is not looked at": "stuck for ever",
    "parked is not stored": "stuck for ever",
    "parked is not taken back": "stuck for ever|runs twice|taken for lost",
    "wake() takes a parked kernel for awake": "stuck for ever",
    "wake() looks at the event last": "taken for lost",
    "wake() does not wait for the end": "taken for lost|stuck for ever|runs twice",
    "the ledger is not kept": "runs twice",
    "the reply is stored before the output": "an output of an earlier run",
    "the input is stored after the request": "an output of an earlier run",
}


@pytest.mark.parametrize("case", CASES)
def test_every_request_is_run_once_and_answered(case: str) -> None:
    order, generations = CASES[case]
    assert explore(model(generations=generations, order=order)).ends > 0


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_line_is_found(broken: str) -> None:
    with pytest.raises(CounterexampleError, match=BROKEN[broken]):
        explore(model(frozenset({broken}), generations=(1, 1)))
