"""Turns between sessions (turns.py): no request is forgotten; what is charged and given back is right, whoever dies in
between; a session that fills its ring is served in turn with the others, and one that was away has saved nothing up.
"""

from __future__ import annotations

from typing import Any

import pytest

from .explore import CounterexampleError, explore
from .turns import Turns, model

CASES: dict[str, dict[str, Any]] = {
    "one floods": {"sessions": (0, 0, 0, 0, 1, 1), "published": 6},
    "one comes late": {"sessions": (0, 0, 0, 0, 1, 1, 1), "published": 4, "late": 2},
    "one cancels": {"sessions": (0, 0, 1, 1), "published": 4, "cancelled": (2,)},
    "one cancels, and comes again": {"sessions": (0, 0, 0, 1, 1, 1), "published": 5, "cancelled": (3, 4), "late": 1},
    "deadlines pass": {"sessions": (0, 0, 1), "published": 3, "expires": True},
    "a death": {"sessions": (0, 0, 1), "published": 3, "workers": 2, "deaths": 1},
    "a death, and a cancelled one": {
        "sessions": (0, 0, 1), "published": 3, "cancelled": (0,), "workers": 2, "deaths": 1,
    },
    "a death, and deadlines": {"sessions": (0, 0), "published": 2, "expires": True, "workers": 2, "deaths": 1},
}  # fmt: skip

BROKEN = {
    "one floods": ["the charge is forgotten"],
    "one comes late": ["a session that was away goes back in time"],
    "one cancels": ["nothing is refunded"],
    "a death, and a cancelled one": ["refunded before the charge is taken back", "the charge stays"],
}


@pytest.mark.parametrize("case", CASES)
def test_everybody_has_his_turn(case: str) -> None:
    assert explore(model(Turns(**CASES[case]))).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(model(Turns(**CASES[case], broken=frozenset({broken}))))
