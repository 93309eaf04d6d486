"""A worker that is lent (lent.py): what waits while the pool's own worker is busy is run in the lender's idle time; it
runs only what it holds; whoever sleeps is woken, and the watch over the rings is handed over without a gap.
"""

from __future__ import annotations

from typing import Any

import pytest

from .explore import CounterexampleError, explore
from .lent import Helped, model

LONG = frozenset({1})
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "a long one, then a short one": ({"requests": ((1, 2),), "long": LONG, "held": frozenset({2})}, 0),
    "one that it does not hold goes first": (
        {"requests": ((1, 3, 2),), "long": LONG, "held": frozenset({2}), "sweeps": True}, 0,
    ),
    "the lender is busy, and idle again": (
        {"requests": ((1, 2),), "long": LONG, "held": frozenset({2}), "away": True, "sweeps": True}, 1,
    ),
    "the lender is busy for a while": (
        {"requests": ((1, 2),), "long": LONG, "held": frozenset({2}), "sweeps": True}, 2,
    ),
    "the own one comes back": ({"requests": ((1, 2),), "long": LONG, "sweeps": True}, 0),
}  # fmt: skip

BROKEN = {
    "a long one, then a short one": [
        "a lent worker is not woken",
        "it does not lead",
        "it does not look again",
        "the leader is not looked at again",
        "who resigns looks idle",
    ],
    "one that it does not hold goes first": ["it takes what it does not hold", "the sweeper does not look"],
    "the lender is busy, and idle again": ["the sweeper does not look"],
    "the lender is busy for a while": ["it keeps a lead that it cannot use"],
}


def helped(case: str, *broken: str) -> Any:
    options, changes = CASES[case]
    return model(Helped(workers=2, lent=1, broken=frozenset(broken), **options), changes)


@pytest.mark.parametrize("case", CASES)
def test_what_waits_is_run_in_lent_time(case: str) -> None:
    assert explore(helped(case)).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(helped(case, broken))
