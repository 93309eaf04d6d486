"""The explorer itself, on programs whose outcomes are known: the litmus tests of x86-TSO, futexes, robust mutexes,
traces.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from .explore import CounterexampleError, Model, Process, explore
from .operation import (
    ALL,
    Body,
    BrokenError,
    Steps,
    act,
    add,
    cas,
    choose,
    fail,
    fence,
    goto,
    load,
    lock,
    sleep,
    store,
    swap,
    try_lock,
    unlock,
    wake,
)


def outcomes(bodies: list[Body], memory: dict[Hashable, Any], order: str) -> set[tuple[Any, ...]]:
    """What ("r", i) may hold at the end."""
    seen: set[tuple[Any, ...]] = set()
    registers: dict[Hashable, Any] = {("r", i): None for i in range(len(bodies))}

    def final(m: Any) -> None:
        seen.add(tuple(m[name] for name in registers))

    explore(
        Model([Process(f"p{i}", body) for i, body in enumerate(bodies)], {**memory, **registers}, order, final=final)
    )
    return seen


def buffering(me: int, barrier: str) -> Body:
    """Stores to its own variable, loads the other one: Dekker."""

    def body() -> Steps:
        if barrier == "swap":
            yield swap(("x", me), 1)
        else:
            yield store(("x", me), 1)
        if barrier == "fence":
            yield fence()
        other = yield load(("x", 1 - me))
        yield act(lambda m: m.__setitem__(("r", me), other), "says what it saw")

    return body


@pytest.mark.parametrize(("barrier", "order", "both_miss"), [
    ("none", "sc", False), ("none", "tso", True), ("fence", "tso", False), ("swap", "tso", False),
])  # fmt: skip
def test_store_buffering(barrier: str, order: str, both_miss: bool) -> None:
    memory: dict[Hashable, Any] = {("x", 0): 0, ("x", 1): 0}
    seen = outcomes([buffering(0, barrier), buffering(1, barrier)], memory, order)
    assert ((0, 0) in seen) is both_miss
    assert (1, 1) in seen


@pytest.mark.parametrize(("order", "release", "torn"), [
    ("sc", False, False), ("tso", False, False), ("weak", True, False), ("weak", False, True),
])  # fmt: skip
def test_message_passing(order: str, release: bool, torn: bool) -> None:
    def sender() -> Steps:
        yield store("data", 1)
        yield store("flag", 1, release=release)

    def receiver() -> Steps:
        flag = yield load("flag")
        data = yield load("data")
        yield act(lambda m: m.__setitem__(("r", 1), (flag, data)), "says what it saw")

    seen = outcomes([sender, receiver], {"data": 0, "flag": 0}, order)
    assert ((None, (1, 0)) in seen) is torn
    assert (None, (1, 1)) in seen


def test_a_process_sees_its_own_store_first() -> None:
    def body() -> Steps:
        yield store("x", 1)
        yield store("x", 2)
        own = yield load("x")
        if own != 2:
            yield fail(f"its own store is {own}")

    explore(Model([Process("p", body)], {"x": 0}, "weak"))


def sleeper() -> Steps:
    value = yield load("word")
    if value == 0:
        yield sleep(("word", 0))


def waker(first: str) -> Body:
    def body() -> Steps:
        if first == "store":
            yield swap("word", 1)
            yield wake("word", ALL)
        else:
            yield wake("word", ALL)
            yield swap("word", 1)

    return body


def test_a_futex_compares_and_sleeps_in_one_step() -> None:
    explore(Model([Process("sleeper", sleeper), Process("waker", waker("store"))], {"word": 0}))
    with pytest.raises(CounterexampleError, match="sleeper is stuck for ever") as caught:
        explore(Model([Process("sleeper", sleeper), Process("waker", waker("wake"))], {"word": 0}))
    # A shortest one, and each line says who, where and what.
    assert len(caught.value.trace) == 4
    assert any("futex wait on word == 0: sleeps" in line for line in caught.value.trace)


def test_a_wake_of_one_leaves_the_others_asleep() -> None:
    def body() -> Steps:
        yield sleep(("word", 0))

    def wakes_one() -> Steps:
        yield wake("word", 1)

    sleepers = [Process(f"sleeper{i}", body, daemon=True) for i in range(2)]
    outcome = explore(Model([*sleepers, Process("waker", wakes_one)], {"word": 0}))
    assert outcome.ends == 3  # nobody slept yet, or one of the two was woken


def test_a_timed_sleep_ends() -> None:
    def body() -> Steps:
        yield sleep(("word", 0), timed=True)

    assert explore(Model([Process("sleeper", body)], {"word": 0})).ends == 1


def counter(me: int, locked: bool) -> Body:
    def body() -> Steps:
        if locked:
            yield lock("mutex")
        value = yield load("x")
        yield store("x", value + 1)
        if locked:
            yield unlock("mutex")

    return body


@pytest.mark.parametrize("locked", [True, False])
def test_a_mutex_excludes(locked: bool) -> None:
    def final(m: Any) -> str | None:
        return None if m["x"] == 2 else f"x is {m['x']}"

    model = Model([Process(f"p{i}", counter(i, locked)) for i in range(2)], {"x": 0, "mutex": 0}, final=final)
    if locked:
        explore(model)
    else:
        with pytest.raises(CounterexampleError, match="x is 1"):
            explore(model)


def test_a_dead_holder_is_noticed_and_its_stores_have_arrived() -> None:
    def holder() -> Steps:
        yield lock("mutex")
        yield store("x", 1)
        yield store("y", 1)
        yield unlock("mutex")

    def heir() -> Steps:
        taken = yield lock("mutex")
        x = yield load("x")
        y = yield load("y")
        if taken == "yes" and x != y:
            yield fail("the mutex said that all was well")
        yield act(lambda m: m.__setitem__("seen", (taken, x, y)), "says what it saw")
        yield unlock("mutex")

    seen = set()

    def final(m: Any) -> None:
        seen.add(m["seen"])

    memory: dict[Hashable, Any] = {"x": 0, "y": 0, "mutex": 0, "seen": None}
    explore(Model([Process("holder", holder, mortal=True), Process("heir", heir)], memory, deaths=1, final=final))
    assert ("after_death", 1, 0) in seen
    assert {("yes", 0, 0), ("yes", 1, 1)} <= seen
    assert ("after_death", 0, 1) not in seen


def test_try_lock_does_not_wait() -> None:
    def body() -> Steps:
        taken = yield try_lock("mutex")
        if taken == "no":
            return
        yield add("x", 1)
        yield unlock("mutex")

    assert explore(Model([Process(f"p{i}", body) for i in range(2)], {"x": 0, "mutex": 0})).ends == 2


def test_a_patient_process_steps_only_when_nobody_else_can() -> None:
    def body() -> Steps:
        yield swap("x", 1)

    def timer() -> Steps:
        won, _ = yield cas("x", 0, 2)
        if won:
            yield fail("it did not wait")

    explore(Model([Process("p", body), Process("timer", timer, patient=True)], {"x": 0}))
    with pytest.raises(CounterexampleError, match="it did not wait"):
        explore(Model([Process("p", body), Process("timer", timer)], {"x": 0}))


def test_every_choice_is_tried_and_goto_forgets() -> None:
    def body(turn: int) -> Steps:
        yield choose("left", "right")
        if turn < 3:
            yield goto(body, turn + 1)

    assert explore(Model([Process("p", body, (0,))], {"x": 0})).states == 5


def test_a_ghost_that_finds_a_property_broken_ends_the_search() -> None:
    def broken(m: Any) -> None:
        raise BrokenError("x may not be touched")

    def body() -> Steps:
        yield act(broken, "touches x")

    with pytest.raises(CounterexampleError, match="x may not be touched"):
        explore(Model([Process("p", body)], {"x": 0}))


def test_an_invariant_holds_in_every_state() -> None:
    def body() -> Steps:
        yield swap("x", 1)
        yield swap("x", 0)

    def invariant(m: Any) -> str | None:
        return None if m["x"] == 0 else "x is not 0"

    with pytest.raises(CounterexampleError, match="x is not 0"):
        explore(Model([Process("p", body)], {"x": 0}, invariant=invariant))


def test_too_many_states_are_an_error_and_not_a_pass() -> None:
    def body() -> Steps:
        yield add("x", 1)
        yield goto(body)

    with pytest.raises(RuntimeError, match="choose smaller bounds"):
        explore(Model([Process("p", body)], {"x": 0}, limit=1000))
