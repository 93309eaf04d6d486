"""Pools that help each other (`helps=`) while anybody is killed: the lent worker, the helped pool's, the lender's."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import watch
from crash_host import CrashHost
from witness import load_all, watching

import teal

POOLS = {"b": {"helps": ["default"]}}


def everyone(host: teal.Host) -> dict[int, tuple[str, str | None]]:
    """Process → its pool, and who lends it."""
    return {w.pid: (w.pool, w.lent_by) for w in host.statistics().workers if watch.alive(w.pid)}


def lent(host: teal.Host) -> list[int]:
    return [pid for pid, (_, by) in everyone(host).items() if by is not None]


@pytest.mark.crash
def test_killed_at_random(
    hosts: Callable[..., CrashHost], model_file: Path, dice: random.Random, rounds: Callable[[int], int]
) -> None:
    host = hosts(workers=1, pools=POOLS)
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    mine = attached.load("mine", "crash_kernels:square", pool="b")
    stop = threading.Event()
    wrong: list[Any] = []

    def busy() -> None:  # a backlog that is shared, and calls of the lender's own
        with teal.connect(host.address) as own:
            square, other = own.model("square"), own.model("mine")
            x = np.arange(200.0)
            while not stop.is_set():
                futures = [square.submit(x) for _ in range(40)] + [other.submit(x)]
                for future in futures:
                    if not np.array_equal(future.result()["y"].numpy(), x * x):
                        wrong.append(future)

    def died(name: str, error: teal.TealError) -> bool:
        return name == "cube" and isinstance(error, teal.PeerDied) and "signal 9 SIGKILL" in str(error)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        with watching(host.address, may_fail=died) as witness:
            for _ in range(rounds(15)):
                time.sleep(dice.random() * 0.3)
                if workers := list(everyone(attached)):
                    os.kill(dice.choice(workers), signal.SIGKILL)
            watch.until(lambda: len(everyone(attached)) == 3, "three workers")
            witness.goes_on()
            stolen = attached.statistics().pools[0].stolen
            watch.until(lambda: attached.statistics().pools[0].stolen > stolen, "help again")
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert mine.statistics().failed == 0
    attached.close()


def test_what_a_lent_worker_ran_runs_again(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    """By the pool's own worker or by the next lent one; and the lender's time is lent again."""
    host = hosts(workers=1, pools=POOLS)
    with teal.connect(host.address) as attached:
        until, again = attached.load("until", "lent_kernels:until"), attached.load("again", "crash_kernels:die_once")
        who = attached.load("who", "lent_kernels:who")
        gate, begun = tmp_path / "gate", tmp_path / "begun"
        held = until.submit(gate=str(gate), begun=str(begun))
        watch.until(begun.exists, "a busy worker")
        (before,) = lent(attached)
        answered = int(again(path=str(tmp_path / "died"), how="signal:9")[0].numpy())
        (after,) = lent(attached)
        assert (answered, before != after) == (after, True)
        assert [int(who(np.int64(0))["pid"].numpy()) for _ in range(3)] == [after] * 3
        gate.touch()
        held.result()
        statistics = attached.statistics()
        assert (statistics.restarts, statistics.run_again, statistics.failed_with_worker) == (1, 1, 0)


def test_the_lender_dies(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    """Its lent worker goes on; what it runs is answered."""
    host = hosts(workers=1, pools=POOLS)
    with teal.connect(host.address) as attached:
        until, who = attached.load("until", "lent_kernels:until"), attached.load("who", "lent_kernels:who")
        gate, begun = tmp_path / "gate", tmp_path / "begun"
        held = until.submit(gate=str(gate), begun=str(begun))
        watch.until(begun.exists, "a busy worker")
        (lender,) = [pid for pid, (pool, _) in everyone(attached).items() if pool == "b"]
        (helper,) = lent(attached)
        os.kill(lender, signal.SIGKILL)
        assert int(who(np.int64(0))["pid"].numpy()) == helper  # once there is a worker again whose time can be lent
        gate.touch()
        held.result()


def test_a_host_that_dies_leaves_no_lent_worker(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=1, pools=POOLS)
    attached = teal.connect(host.address)
    pids = list(everyone(attached))
    assert len(pids) == 3
    host.kill()
    for pid in pids:
        watch.until(lambda pid=pid: not watch.alive(pid), "its end")
