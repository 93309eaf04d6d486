"""`idle=`: how long workers and callers may spin, per host and per model."""

from __future__ import annotations

import time

import numpy as np
import pytest

import teal


def test_a_model_can_ask_for_more_than_its_host() -> None:
    with teal.Host(idle="50us") as host:
        plain = host.load("plain", "builtin:identity")
        assert plain._described["idle_ns"] is None
        keen = host.load("keen", "builtin:identity", idle="5ms")
        assert keen._described["idle_ns"] == 5_000_000
        assert keen(b"x"[0])[0].numpy() == b"x"[0]  # the worker took the new ceiling and goes on
        host.unload("keen")
        assert plain(1)[0].numpy() == 1


@pytest.mark.parametrize("idle", ["soon", "-1ms", "2 hours", float("nan"), 1e9])
def test_nonsense_is_refused(host: teal.Host, idle: str | float) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.idle"):
        host.load("never", "builtin:identity", idle=idle)


@pytest.mark.parametrize("wrong", [{"threads": 1.5}, {"version": "1"}, {"options": {"a": 1}}, {"idempotent": "yes"}])
def test_a_wrong_type_does_not_cost_the_connection(host: teal.Host, wrong: dict[str, object]) -> None:
    with pytest.raises(teal.InvalidArgument):
        host.load("never", "builtin:identity", **wrong)  # type: ignore[arg-type]
    assert host.load("fine", "builtin:sum")([1.0, 2.0])[0].numpy() == 3.0


def test_a_pinned_version_stands_beside_the_others(host: teal.Host) -> None:
    host.load("both", "builtin:identity")
    pinned = host.load("both", "builtin:identity", version=7)
    assert sorted(info.version for info in host.models() if info.name == "both") == [1, 7]
    host.load("both", "builtin:identity")  # replaces what is not pinned
    host.model("both", version=7)
    assert pinned(3)[0].numpy() == 3
    assert 1 not in [info.version for info in host.models() if info.name == "both"]


def spent(host: teal.Host, calls: int) -> float:
    """CPU seconds of this thread for so many calls of 20 ms; how long they last is learnt before."""
    call = host.model("napper").prepare(np.int64(20_000))
    for _ in range(5):
        call()
    before = time.thread_time()
    for _ in range(calls):
        call()
    return time.thread_time() - before


def test_a_client_says_how_long_its_own_calls_spin(host: teal.Host) -> None:
    host.load("napper", "builtin:sleep")
    with teal.connect(host.address) as dozing, teal.connect(host.address, idle="1s") as spinning:
        model = spinning.model("napper")
        assert spinning._connection.idle_ns == 10**9
        assert model.name == "napper"
        assert spent(spinning, 5) > 3 * spent(dozing, 5)


@pytest.mark.parametrize("idle", ["soon", "-1ms", "2 hours", float("nan"), 1e9, []])
def test_a_client_cannot_say_nonsense(host: teal.Host, idle: object) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.idle"):
        teal.connect(host.address, idle=idle)  # type: ignore[arg-type]
