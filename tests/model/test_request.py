"""One slot, generation after generation (line.py): exactly one end for each, delivered to it and to no other; the
slot is not loaned again while the worker side may touch it, and always is some time; what was cancelled before it
was claimed never runs.
"""

from __future__ import annotations

from typing import Any

import pytest

from .explore import CounterexampleError, explore
from .line import Line, model

CASES: dict[str, dict[str, Any]] = {
    "host's deadline": {"deaths": 0, "client": ("wait", "cancel", "drop")},
    "both sides' deadlines": {"deaths": 0, "client": ("expire",)},
    "death": {"expiries": 0, "client": ("cancel", "drop")},
    "death and deadline": {"client": ("drop",)},
    "death, idempotent": {"expiries": 0, "idempotent": True, "client": ("cancel", "drop")},
    "pure kernel": {"deaths": 0, "pure": True, "client": ("cancel", "drop")},
    "fields beside the word, death": {"expiries": 0, "client": ("wait",), "fields": True},
    "fields beside the word, deadline": {"deaths": 0, "client": ("wait",), "fields": True},
}

BROKEN = {
    "host's deadline": [
        "a later generation is not told from an earlier one",
        "finish() ends the record first",
        "a lost race releases nothing",
        "cancel() passes over a claim",
        "nothing is claimed",
        "released before the last access",
        "an expired request is released while it runs",
        "ended is enough",
    ],
    "death": [
        "a later generation is not told from an earlier one",
        "release_slot() goes backwards",
        "release_slot() tries once",
        "release_slot() does not look at the word",
        "pick() ends the record first",
        "finish() ends the record first",
    ],
}


def order(case: str) -> str:
    return "tso" if "fields" in case else "sc"


@pytest.mark.parametrize("case", CASES)
def test_each_generation_ends_once_and_its_slot_comes_back(case: str) -> None:
    assert explore(model(Line(**CASES[case]), order=order(case))).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(model(Line(**CASES[case], broken=frozenset({broken})), order=order(case)))
