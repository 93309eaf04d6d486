"""What an agent knows (notice.py): once nothing happens any more it knows all, whatever was lost on the way; a
decision on what is no longer so is not carried out; no word and no message is read half.
"""

from __future__ import annotations

from typing import Any

import pytest

from .explore import CounterexampleError, Model, explore
from .notice import Notice, model

CASES: dict[str, dict[str, Any]] = {
    "a ring with room": {"changes": "ww", "ring": 4},
    "stores arrive late": {"changes": "w", "ring": 1},
    "messages are lost": {"changes": "ww", "ring": 1},
    "one thing changes": {"changes": "wp", "ring": 2},
    "a writer is in the way": {"changes": "wp", "ring": 2, "overtaken": True},
    "the writer dies at every store": {"changes": "w", "ring": 2, "dies": True},
    "it decides": {"changes": "ww", "ring": 1, "decides": True},
    "it decides, the writer dies": {"changes": "w", "ring": 2, "decides": True, "dies": True},
}
ORDER = {"a ring with room": "tso", "stores arrive late": "weak", "it decides": "tso"}

BROKEN = {
    "stores arrive late": ["push() stores relaxed"],
    "messages are lost": [
        "the message is sent before the word is written",
        "nobody says that a message was lost",
        "the count is not made odd",
        "the count is not looked at",
        "lost() reads the count after the words",
        "the tail moves before the message is read",
        "old news are believed",
    ],
    "a writer is in the way": ["a word that could not be read is passed over"],
    "the writer dies at every store": [
        "nothing is restated",
        "what is restated is not told",
        "a message that lacks its head only is written over",
    ],
    "it decides": ["tseq is not compared", "tseq does not rise"],
}


def build(case: str, broken: frozenset[str] = frozenset()) -> Model:
    return model(Notice(**CASES[case], broken=broken), ORDER.get(case, "sc"))


@pytest.mark.parametrize("case", CASES)
def test_an_agent_that_was_told_all_knows_all(case: str) -> None:
    assert explore(build(case)).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_is_found(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError):
        explore(build(case, frozenset({broken})))
