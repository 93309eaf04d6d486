"""No lost wake-up at a seat (rest.py): neither an agent nor a worker sleeps over something that was said to it."""

from __future__ import annotations

from typing import Any

import pytest

from .explore import CounterexampleError, Model, explore
from .rest import Rest, agent_model, crowd_model, worker_model

AGENT: dict[str, dict[str, Any]] = {
    "one writer": {"messages": (2,)},
    "two writers": {"messages": (1, 1)},
    "messages that are lost": {"messages": (1, 1), "lost": True},
    "news of its own": {"messages": (1,), "news": True},
    "two seats": {"messages": (2,), "seats": 2},
    "two seats, two writers": {"messages": (1, 1), "seats": 2},
    "two seats, and news": {"messages": (1,), "seats": 2, "news": True},
}
WORKER: dict[str, dict[str, Any]] = {
    "it follows": {"staged": 2},
    "it follows, and is latched": {"latched": True},
    "it follows, and has news": {"posted": True},
    "it leads": {"leads": True, "called": True},
    "it leads, and is latched": {"leads": True, "called": True, "latched": True, "staged": 0},
}
BROKEN = {
    "one writer": [
        "asleep is looked at before the message",
        "flush() has no fence",
        "the bell is not changed",
        "it does not say that it sleeps",
        "lie_down() has no fence",
        "nobody looks once more",
        "the bell is read after the look",
    ],
    "messages that are lost": ["has_news() does not look for lost ones"],
    "news of its own": ["what was posted is not looked for"],
    "two seats, and news": ["what was posted is not looked for", "the bell is read after the look"],
    "it follows": [
        "asleep is looked at before it is staged",
        "ring() has no fence",
        "the desk's bell is not changed",
        "asleep is stored relaxed",
        "the worker does not say that it sleeps",
        "the desk is not looked at",
        "the desk's bell is read after the look",
        "the worker sleeps on its own bell only",
    ],
    "it follows, and is latched": ["wake is read last"],
    "it leads": ["the desk is not looked at"],
    "it follows, and has news": ["wake is not changed"],
    "a full desk": ["a crowded desk is slept over"],
}


def build(case: str, broken: frozenset[str] = frozenset()) -> Model:
    if case == "a full desk":
        return crowd_model(Rest(broken=broken))
    if case in AGENT:
        return agent_model(Rest(**AGENT[case], broken=broken))
    return worker_model(Rest(**WORKER[case], broken=broken))


@pytest.mark.parametrize("case", [*AGENT, *WORKER, "a full desk"])
def test_nobody_sleeps_over_news(case: str) -> None:
    assert explore(build(case)).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in BROKEN.items() for broken in lines])
def test_a_broken_line_puts_somebody_to_sleep(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError, match="stuck"):
        explore(build(case, frozenset({broken})))
