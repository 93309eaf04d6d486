"""No lost wake-up: pool.py (doorbell, leader, followers, sweeper) and completion.py (waiting for an end, the notifier).

Every case is explored as the protocol ought to be, and again with one line broken, which must be found.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from . import completion
from .explore import CounterexampleError, Model, Process, explore
from .operation import Steps, call
from .pool import Pool
from .worker import bury_worker, model, post, tick, watch_leader

TWO = ((1, 2),)
THREE = ((1, 2, 3),)


def poster(pool: Pool, worker: int) -> Steps:
    yield call(post, pool, worker)


def pool_model(case: str, broken: frozenset[str]) -> Model:
    def pool(workers: int, requests: tuple[tuple[int, ...], ...], **more: Any) -> Pool:
        return Pool(workers, requests, broken=broken, **more)

    def beside(name: str, body: Any, *args: Hashable, patient: bool = False) -> Process:
        return Process(name, body, args, daemon=True, patient=patient)

    first = frozenset({1})
    match case:
        case "one worker, two clients":
            return model(pool(1, ((1, 2), (3,)), fine=True))
        case "news for a leader":
            one = pool(1, ((1,),), news=True, fine=True)
            return model(one, Process("poster", poster, (one, 0)))
        case "news for a follower":
            two = pool(2, ((1,),), news=True)
            return model(two, Process("poster", poster, (two, 1)), start="LF")
        case "two workers from the start":
            return model(pool(2, TWO, long=first))
        case "the leader resigns, the other sleeps":
            return model(pool(2, TWO, long=first), start="LF")
        case "the leader resigns, the other comes back":
            return model(pool(2, TWO, long=first), start="RB")
        case "two workers, two clients":
            return model(pool(2, ((1,), (2,)), long=first), start="LF", order="sc")
        case "three workers":
            return model(pool(3, THREE, long=frozenset({1, 2})), start="RFF", order="sc")
        case "three workers, one of them busy":
            return model(pool(3, THREE, long=frozenset({1, 2})), start="RXF")
        case "the sweeper takes the lead away":
            slow = pool(2, TWO, slow=first)
            return model(slow, beside("sweeper", watch_leader, slow), start="LF", order="sc")
        case "a follower dies":
            mortal = pool(2, ((1,),), victim=1)
            return model(mortal, beside("host", bury_worker, mortal, 1), start="L-")
        case "a leader dies":
            mortal = pool(2, TWO, victim=0)
            return model(mortal, beside("host", bury_worker, mortal, 0), start="LF", order="sc")
        case "a limit, and a cancelled request":
            tight = pool(2, THREE, long=frozenset({2}), cancelled=first, limit=2, fine=True)
            # pick() may give a record back, and so make room for a ring entry, while the leader falls asleep: only the
            # sweeper's next tick finds it.
            ticking = [] if "no sweeper" in broken else [beside("sweeper", tick, tight, patient=True)]
            return model(tight, *ticking, start="L-", order="sc")
    raise ValueError(case)


POOL_CASES = {
    "one worker, two clients": [
        "need_wake is loaded first",
        "need_wake is stored relaxed",
        "need_wake is not stored",
        "doorbell is not bumped",
        "doorbell is read after need_wake",
        "doorbell is read last",
        "the rings are not looked at again",
    ],
    "news for a leader": ["wake is not bumped"],
    "news for a follower": ["sleeping is not stored"],
    "two workers from the start": [],
    "the leader resigns, the other sleeps": [
        "sleeping is read before wake is bumped",
        "nobody is promoted",
        "promoted before resigned",
        "the leader keeps the lead",
    ],
    "the leader resigns, the other comes back": ["the leader is not looked at again", "idle is stored relaxed"],
    "two workers, two clients": [],
    "three workers": ["nobody looks for a missing leader"],
    "three workers, one of them busy": ["a busy worker looks idle"],
    "the sweeper takes the lead away": ["doorbell wakes one", "need_wake is cleared by the worker"],
    "a follower dies": ["rouse() passes over a sleeping leader"],
    "a leader dies": ["nobody leads after a death", "nobody is roused after a death"],
    "a limit, and a cancelled request": ["no sweeper"],
}


@pytest.mark.parametrize("case", POOL_CASES)
def test_every_request_is_run_by_somebody_awake(case: str) -> None:
    assert explore(pool_model(case, frozenset())).ends > 0


@pytest.mark.parametrize(("case", "broken"), [(case, broken) for case, lines in POOL_CASES.items() for broken in lines])
def test_a_broken_line_puts_somebody_to_sleep(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError, match="sleeps"):
        explore(pool_model(case, frozenset({broken})))


COMPLETION_CASES = {
    "two generations": [
        "waiting is not stored",
        "the word is not looked at",
        "waiting is read before the word is changed",
    ],
    "two waiters": ["one waiter is woken", "waiting is cleared by whoever sees the end"],
    "a waiter that gives up": ["waiting is cleared by whoever wakes up"],
    "a waiter that gives up, two generations": [],
    "cancelled": ["cancel() wakes nobody"],
    "cancelled while it ends": [],
    "notifier": ["the bell is not bumped", "the bell is read after arriving_", "what arrives late is forgotten"],
    "notifier that is stopped": ["the bell is read after stopping_"],
    "notifier and a waiter": ["waiting is cleared by whoever sees the end"],
    "notifier, cancelled": ["cancel() wakes nobody"],
}


@pytest.mark.parametrize("case", COMPLETION_CASES)
def test_every_waiter_hears_of_the_end(case: str) -> None:
    assert explore(completion.model(case, frozenset())).ends > 0


@pytest.mark.parametrize(
    ("case", "broken"), [(case, broken) for case, lines in COMPLETION_CASES.items() for broken in lines]
)
def test_a_broken_line_leaves_somebody_waiting(case: str, broken: str) -> None:
    with pytest.raises(CounterexampleError, match=r"stuck|never called"):
        explore(completion.model(case, frozenset({broken})))
