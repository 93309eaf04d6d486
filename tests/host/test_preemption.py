"""A host whose requests leave their worker in the middle: settings, figures, and what becomes of them when something
ends or dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal


def until(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.001)


def away(slow: teal.Model, others: teal.Model, count: int = 1) -> list[teal.Future]:
    """So many long requests of ``slow``, of which at least all but one have begun and left."""
    futures = [slow.submit(np.int64(60_000_000)) for _ in range(count)]
    others(np.int64(10))
    until(lambda: slow.statistics().preemptions >= 2 * count)
    return futures


@pytest.fixture
def spins() -> Any:
    """(host, a model to be left, another one)"""
    with teal.Host(quantum="50us") as host:
        yield host, host.load("slow", "builtin:spin"), host.load("quick", "builtin:spin")


# ---- settings ------------------------------------------------------------------------------------------------------


def test_quantum_of_host_and_pool() -> None:
    with teal.Host(quantum="50us", pools={"whole": {"quantum": 0}, "own": {"quantum": 0.001}}) as host:
        pools = {pool.name: pool.quantum_us for pool in host.statistics().pools}
        assert pools == {"default": 50.0, "whole": 0.0, "own": 1000.0}
        whole = host.load("whole-spin", "builtin:spin", pool="whole")
        futures = [whole.submit(np.int64(2_000)) for _ in range(4)]
        for future in futures:
            future.result()
        assert whole.statistics().preemptions == 0


@pytest.mark.parametrize("quantum", ["19us", "11s", -1, "soon"])
def test_what_is_no_quantum(quantum: Any) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.quantum"):
        teal.Host(quantum=quantum)


def test_twenty_microseconds_are_reached(capsys: pytest.CaptureFixture[str]) -> None:
    with teal.Host(quantum="20us") as host:
        model = host.load("spin", "builtin:spin")
        start = time.perf_counter()
        futures = [model.submit(np.int64(100_000)) for _ in range(2)]
        assert all(int(future.result()[0].numpy()) >= 100_000_000 for future in futures)
        took = time.perf_counter() - start
        numbers = model.statistics()
        piece = 200_000 / numbers.preemptions
        with capsys.disabled():
            print(
                f"\n  quantum of 20 us: {numbers.preemptions} preemptions, one each {piece:.1f} us on the core; "
                f"both took {1000 * took:.0f} ms instead of 200 ms"
            )
        assert piece >= 19
        assert numbers.preemptions > 200


# ---- ended while they are away -------------------------------------------------------------------------------------


def test_cancelled(spins: tuple[teal.Host, teal.Model, teal.Model]) -> None:
    _, slow, quick = spins
    futures = away(slow, quick, 3)
    assert all(future.cancel() for future in futures)
    until(lambda: slow.statistics().in_flight == 0)
    assert int(quick(np.int64(10))[0].numpy()) >= 10_000
    numbers = slow.statistics()
    assert (numbers.cancelled, numbers.dropped) == (3, 3)


def test_past_their_deadline(spins: tuple[teal.Host, teal.Model, teal.Model]) -> None:
    _, slow, quick = spins
    futures = [slow.submit(np.int64(60_000_000), deadline=0.1) for _ in range(3)]
    for future in futures:
        with pytest.raises(teal.DeadlineExceeded):
            future.result()
    until(lambda: slow.statistics().in_flight == 0)
    quick(np.int64(10))
    assert (slow.statistics().expired, slow.statistics().dropped) == (3, 3)


def test_unloaded(spins: tuple[teal.Host, teal.Model, teal.Model]) -> None:
    host, slow, quick = spins
    futures = [slow.submit(np.int64(20_000)) for _ in range(3)]
    slow.unload()  # they finish first
    assert all(int(future.result()[0].numpy()) >= 20_000_000 for future in futures)
    quick(np.int64(10))
    assert [info.name for info in host.models()] == ["quick"]


def test_their_client_leaves(spins: tuple[teal.Host, teal.Model, teal.Model]) -> None:
    host, _, quick = spins
    attached = teal.connect(host.address)
    slow = attached.model("slow")
    away(slow, quick, 3)
    attached.close()
    mine = host.model("slow")
    until(lambda: mine.statistics().in_flight == 0)
    assert mine.statistics().dropped == 3  # at the end of its slice also the one that ran
    until(lambda: len(host.statistics().clients) == 1)


def test_the_host_closes() -> None:
    with teal.Host(quantum="50us") as host:
        slow, quick = host.load("slow", "builtin:spin"), host.load("quick", "builtin:spin")
        futures = away(slow, quick, 3)
        host.stop(timeout=0.2)  # they would take three minutes
    for future in futures:
        with pytest.raises(teal.TealError):
            future.result(timeout=60)


# ---- their worker dies ---------------------------------------------------------------------------------------------


def test_their_worker_is_killed(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "kernel"))
    try:
        with teal.Host(quantum="50us") as host:
            slow, quick = host.load("slow", "builtin:spin"), host.load("quick", "builtin:spin")
            held = host.load("held", "yielding_kernels:Held")
            (worker,) = host.statistics().workers
            path = np.frombuffer(str(tmp_path / "soon").encode(), np.uint8)
            with_effects = held.submit(path)
            futures = [slow.submit(np.int64(300_000)) for _ in range(3)]
            quick(np.int64(10))
            until(lambda: slow.statistics().preemptions > 20 and held.statistics().yields > 2)
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(teal.PeerDied, match="SIGKILL"):
                with_effects.result()
            assert all(int(future.result()[0].numpy()) >= 300_000_000 for future in futures)  # begun anew
            until(lambda: slow.statistics().in_flight == 0)
            assert not (tmp_path / "soon.left").exists()  # nobody could close it
            assert int(quick(np.int64(10))[0].numpy()) >= 10_000
    finally:
        sys.path.remove(str(Path(__file__).parents[1] / "kernel"))


@pytest.mark.parametrize("round_", range(3))
def test_workers_killed_at_any_moment(round_: int) -> None:
    with teal.Host(quantum="20us", workers=2) as host:
        slow, sums = host.load("slow", "builtin:spin"), host.load("sums", "builtin:sum")
        x = np.ones(1 << 20, np.float32)
        for turn in range(4):
            futures = [slow.submit(np.int64(3_000)) for _ in range(8)]
            of_sums = [sums.submit(x) for _ in range(8)]
            time.sleep(0.002 * (turn + round_))
            pids = [worker.pid for worker in host.statistics().workers if worker.state != "absent"]
            if pids:
                os.kill(pids[turn % len(pids)], signal.SIGKILL)
            assert all(int(future.result()[0].numpy()) >= 3_000_000 for future in futures)
            assert all(float(future.result()[0].numpy()) == 1 << 20 for future in of_sums)
        until(lambda: slow.statistics().in_flight == 0 and sums.statistics().in_flight == 0)
