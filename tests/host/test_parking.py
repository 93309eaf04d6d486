"""A budget of memory: versions that nobody used for longest are parked, and come back when they are called."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import teal

HEAVY = "toy_kernels:Heavy"  # 40 MB
MB = 1 << 20


def parked(host: teal.Host) -> set[str]:
    return {info.name for info in host.models() if info.parked}


def ask(model: teal.Model, x: int = 1) -> int:
    return int(model(np.int64(x))["y"].numpy())


@pytest.fixture
def small() -> Iterator[teal.Host]:
    """Room for two of the heavy ones."""
    with teal.Host(memory=100 * MB) as host:
        yield host


def test_the_one_used_least_recently_makes_room(small: teal.Host) -> None:
    models = {name: small.load(name, HEAVY) for name in ("a", "b")}
    for info in small.models():
        assert 35 * MB < info.memory < 60 * MB
    assert parked(small) == set()
    models["c"] = small.load("c", HEAVY)
    assert parked(small) == {"a"}
    assert ask(models["a"], 41) == 42  # back again
    assert parked(small) == {"b"}
    (pool,) = small.statistics().pools
    assert (pool.parkings, pool.returns, pool.memory) == (2, 1, 100 * MB)
    assert pool.memory_used <= pool.memory


def test_calls_count_as_use(small: teal.Host) -> None:
    a, _ = small.load("a", HEAVY), small.load("b", HEAVY)
    ask(a)
    seen = small.statistics  # the host looks ten times a second
    stop = threading.Event()
    while not stop.wait(0.15):
        ask(a)
        if seen().pools[0].requests_gone == 0:
            break
    stop.wait(0.25)
    small.load("c", HEAVY)
    assert parked(small) == {"b"}


def test_what_waits_for_a_parked_one_is_answered_in_full(small: teal.Host) -> None:
    """Many at once, in all directions: nothing is lost, nothing mixed up."""
    models = [small.load(f"m{k}", HEAVY) for k in range(4)]
    futures = [(k, models[k % 4].submit(np.int64(k))) for k in range(40)]
    for k, future in futures:
        assert int(future.result()["y"].numpy()) == k + 1
    assert small.statistics().pools[0].returns > 0


def test_others_are_not_held_up(small: teal.Host) -> None:
    echo = small.load("echo", "builtin:identity")
    heavy = [small.load(f"m{k}", HEAVY) for k in range(3)]
    out = [heavy[0].submit(np.int64(k)) for k in range(20)]
    assert echo(np.arange(3))[0].numpy().tolist() == [0, 1, 2]
    assert [int(o.result()["y"].numpy()) for o in out] == list(range(1, 21))


def test_waiting_requests_can_be_cancelled_and_expire(small: teal.Host) -> None:
    models = [small.load(f"m{k}", "toy_kernels:HeavyAndSlow") for k in range(3)]
    assert parked(small) == {"m0"}
    with pytest.raises(teal.DeadlineExceeded):
        models[0](np.int64(1), deadline=0.01)
    future = models[1].submit(np.int64(1))
    future.cancel()
    with pytest.raises(teal.Cancelled):
        future.result()


def test_an_event_and_a_parked_model(small: teal.Host) -> None:
    models = [small.load(f"m{k}", HEAVY) for k in range(3)]
    event = small.event()
    future = models[0].submit(np.int64(5), after=event)
    while small.statistics().queued + small.statistics().active == 0:  # a worker has taken it, and gone to sleep again
        pass
    event.signal()
    assert int(future.result()["y"].numpy()) == 6


def test_unloading_a_parked_one(small: teal.Host) -> None:
    models = [small.load(f"m{k}", HEAVY) for k in range(3)]
    assert parked(small) == {"m0"}
    small.unload("m0")
    with pytest.raises(teal.NotFound):
        ask(models[0])
    future = models[1].submit(np.int64(1))
    small.unload("m1")
    assert int(future.result()["y"].numpy()) == 2


def test_state_is_never_parked(small: teal.Host) -> None:
    first = small.load("a", "toy_kernels:HeavyWithState")
    made = int(first(np.int64(0))["made"].numpy())
    small.load("b", "toy_kernels:HeavyWithState")
    with pytest.raises(teal.QuotaExceeded, match=r"budget of 104857600 \(memory=\) with nothing left to park"):
        small.load("c", HEAVY)
    assert int(first(np.int64(0))["made"].numpy()) == made
    assert {info.name for info in small.models()} == {"a", "b"}


def test_more_than_the_budget(small: teal.Host) -> None:
    small.load("a", HEAVY)
    with teal.Host(memory=30 * MB) as tiny:
        with pytest.raises(teal.QuotaExceeded, match="'big' needs"):
            tiny.load("big", HEAVY)
        assert tiny.models() == []
        assert tiny.load("echo", "builtin:identity")(np.arange(2))[0].numpy().tolist() == [0, 1]


def test_a_worker_that_dies_comes_back_without_the_parked_ones() -> None:
    with teal.Host(memory=100 * MB) as host:
        models = [host.load(f"m{k}", HEAVY, idempotent=True) for k in range(3)]
        restarts = host.statistics().restarts
        os.kill(host.statistics().workers[0].pid, signal.SIGKILL)
        while host.statistics().restarts == restarts:
            pass
        assert parked(host) == {"m0"}
        assert [ask(model, k) for k, model in enumerate(models)] == [1, 2, 3]


@pytest.mark.parametrize("workers", [2])
def test_under_load_with_several_workers(workers: int) -> None:
    with teal.Host(workers=workers, memory=200 * MB) as host:
        models = [host.load(f"m{k}", HEAVY) for k in range(3)]
        failed: list[BaseException] = []

        def calls(which: int) -> None:
            try:
                for k in range(30):
                    assert ask(models[(which + k // 10) % 3], k) == k + 1
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=calls, args=(which,)) for which in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert host.statistics().pools[0].parkings > 0
