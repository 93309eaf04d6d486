"""Workers that die: by kill -9 at any moment, by a signal or exit of their own, while they run or load a model."""

from __future__ import annotations

import os
import random
import re
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

HOW = [
    ("signal:11", "signal 11 SIGSEGV"),
    ("signal:9", "signal 9 SIGKILL"),
    ("exit:3", "exit status 3"),
    ("segfault", "signal 11 SIGSEGV"),
]


def replaced(host: CrashHost, pid: int, count: int) -> None:
    """Waits until a dead worker has a successor that can be called."""
    watch.until(lambda: pid not in host.workers() and len(host.workers()) == count, "the next worker")


@pytest.mark.crash
@pytest.mark.parametrize("part", range(2))
def test_killed_at_random(
    part: int, hosts: Callable[..., CrashHost], model_file: Path, dice: random.Random, rounds: Callable[[int], int]
) -> None:
    host = hosts(workers=2)
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    stop = threading.Event()

    def reload() -> None:  # so that some die while they load
        with teal.connect(host.address) as other:
            while not stop.is_set():
                try:
                    other.load("reloaded", model_file)
                except teal.PeerDied as error:
                    if not re.match(r"signal 9 SIGKILL while it loaded|all workers of pool default died", error.how):
                        raise

    def died(name: str, error: teal.TealError) -> bool:
        return name == "cube" and isinstance(error, teal.PeerDied) and "signal 9 SIGKILL" in str(error)

    loader = threading.Thread(target=reload)
    loader.start()
    kills = rounds(25)
    try:
        with watching(host.address, may_fail=died) as witness:
            for _ in range(kills):
                time.sleep(dice.random() * 0.4)
                workers = host.workers()
                if workers:
                    os.kill(dice.choice(workers), signal.SIGKILL)
            watch.until(lambda: len(host.workers()) == 2, "two workers")
            witness.goes_on()
    finally:
        stop.set()
        loader.join()
    statistics = attached.statistics()
    assert statistics.restarts <= kills
    # What is there now is what a host that never lost a worker has.
    fresh = hosts(workers=2)
    beside = teal.connect(fresh.address)
    load_all(beside, model_file)
    beside.load("reloaded", model_file)
    beside.load("reloaded", model_file)  # the version that was replaced is kept for a roll-back
    with watching(fresh.address):
        pass

    def held(one: CrashHost) -> Any:
        return (watch.descriptors(one.pid), [watch.holdings(pid) for pid in one.workers()])

    watch.settled(watch.steady(lambda: held(fresh)), lambda: held(host), "what host and workers hold")
    attached.close()
    beside.close()


@pytest.mark.parametrize(("how", "words"), HOW)
def test_idempotent_runs_again(how: str, words: str, hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    host = hosts(workers=1)
    with teal.connect(host.address) as attached:
        model = attached.load("m", "crash_kernels:die_once")
        pid = int(model(path=str(tmp_path / how), how=how)[0].numpy())
        assert [pid] == host.workers()
        statistics = attached.statistics()
        assert (statistics.restarts, statistics.run_again, statistics.failed_with_worker) == (1, 1, 0)


@pytest.mark.parametrize(("how", "words"), HOW)
def test_not_idempotent_fails(how: str, words: str, hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=1)
    with teal.connect(host.address) as attached:
        model = attached.load("m", "crash_kernels:misbehave")
        first = int(model(how="work")[0].numpy())
        with pytest.raises(teal.PeerDied) as caught:
            model(how=how)
        assert (caught.value.who, caught.value.how) == ("worker", f"{words} while it ran 'm'")
        assert int(model(how="work")[0].numpy()) != first
        assert attached.statistics().failed_with_worker == 1


def test_idempotent_that_always_kills_gives_up(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=1)
    with teal.connect(host.address) as attached:
        model = attached.load("m", "crash_kernels:misbehave", idempotent=True)
        with pytest.raises(teal.PeerDied, match="exit status 3 while it ran 'm'"):
            model(how="exit:3")
        assert attached.statistics().run_again == 2
        assert int(model(how="work")[0].numpy()) in host.workers()


def test_only_what_it_ran_is_lost(hosts: Callable[..., CrashHost]) -> None:
    """Requests that waited behind the deadly one run in the next worker."""
    host = hosts(workers=1)
    with teal.connect(host.address) as attached:
        model = attached.load("m", "crash_kernels:misbehave")
        sleep = attached.load("sleep", "builtin:sleep")
        sleep(0)
        futures = [sleep.submit(200_000), model.submit(how="exit:3"), *(model.submit(how="work") for _ in range(20))]
        futures[0].result()
        with pytest.raises(teal.PeerDied):
            futures[1].result()
        pids = {int(future.result()[0].numpy()) for future in futures[2:]}
        assert pids == set(host.workers())


@pytest.mark.parametrize("workers", [1, 2])
def test_load_that_kills(workers: int, hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=workers)
    with teal.connect(host.address) as attached:
        identity = attached.load("identity", "builtin:identity")
        with pytest.raises(teal.PeerDied) as caught:
            attached.load("deadly", "crash_kernels:DeadlyAtLoad")
        assert (caught.value.who, caught.value.how) == ("worker", "exit status 3 while it loaded 'deadly'")
        watch.until(lambda: len(host.workers()) == workers, "the next workers")
        assert float(identity(np.float64(7))[0].numpy()) == 7
        now = host.workers()
        assert float(attached.load("square", "crash_kernels:square")(np.array([3.0]))[0].numpy()[0]) == 9
        assert host.workers() == now, "the load that failed kills workers still"
        assert attached.statistics().restarts == workers
        assert [info.name for info in attached.models()] == ["identity", "square"]


def test_resident_model_that_turns_deadly(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    """It was loaded, and kills every worker that loads it anew: given up after the third, the others live on."""
    trap = tmp_path / "trap"
    host = hosts(workers=1, environment={"CRASH_KERNELS_TRAP": str(trap)})
    with teal.connect(host.address) as attached:
        identity = attached.load("identity", "builtin:identity")
        deadly = attached.load("deadly", "crash_kernels:DeadlyIfFile")
        assert float(deadly(np.float64(2))[0].numpy()) == 2
        trap.touch()
        os.kill(host.workers()[0], signal.SIGKILL)
        watch.until(lambda: attached.statistics().restarts >= 4, "three workers killed by the model")
        assert float(identity(np.float64(7))[0].numpy()) == 7
        with pytest.raises(teal.NotFound, match="deadly"):
            deadly(np.float64(2))
        trap.unlink()
        deadly = attached.load("deadly", "crash_kernels:DeadlyIfFile")
        assert float(deadly(np.float64(2))[0].numpy()) == 2
        assert attached.statistics().restarts == 4


def test_load_while_the_only_worker_is_being_replaced(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=1)
    with teal.connect(host.address) as attached:
        for round_ in range(5):
            os.kill(host.workers()[0], signal.SIGKILL)
            model = attached.load(f"m{round_}", "crash_kernels:square")
            assert float(model(np.array([3.0]))[0].numpy()[0]) == 9


def test_version_loaded_while_a_worker_is_being_replaced(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    """The successor comes while the load is under way on the other worker: it holds the version too."""
    gate = tmp_path / "gate"
    host = hosts(workers=2, environment={"CRASH_KERNELS_GATE": str(gate)})
    with teal.connect(host.address) as attached:
        sleep = attached.load("sleep", "builtin:sleep")
        loading = threading.Thread(target=attached.load, args=("slow", "crash_kernels:SlowToLoad"))
        gone = host.workers()[0]
        os.kill(gone, signal.SIGKILL)
        watch.until(lambda: gone not in host.workers(), "the death of a worker")
        loading.start()
        replaced(host, gone, 2)
        gate.touch()
        loading.join()
        slow = attached.model("slow")
        watch.until(lambda: {w.state for w in attached.statistics().workers} <= {"idle", "leading"}, "both workers")
        for _ in range(5):
            busy = sleep.submit(50_000)  # one worker is busy, whichever it is: the other one answers
            assert float(slow(np.float64(3))[0].numpy()) == 3
            busy.result()


def test_others_call_while_one_model_loads(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    """Clients come, get memory, call and go while a load takes its time."""
    gate = tmp_path / "gate"
    host = hosts(workers=1, environment={"CRASH_KERNELS_GATE": str(gate)})
    with teal.connect(host.address) as attached:
        attached.load("identity", "builtin:identity")
        loading = threading.Thread(target=attached.load, args=("slow", "crash_kernels:SlowToLoad"))
        loading.start()
        before = None
        for _ in range(3):
            with teal.connect(host.address) as other:
                x = np.arange(100_000.0)
                assert np.array_equal(other.model("identity")(x)[0].numpy(), x)
            now = watch.steady(lambda: (watch.descriptors(host.pid), watch.shared(host.workers()[0])))
            assert before in (None, now)
            before = now
        gate.touch()
        loading.join()
        assert float(attached.model("slow")(np.float64(3))[0].numpy()) == 3


def test_load_that_raises(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=2)
    with teal.connect(host.address) as attached:
        workers = host.workers()
        with pytest.raises(teal.KernelFailed, match="RuntimeError: no such weights"):
            attached.load("bad", "crash_kernels:RaisesAtLoad")
        with pytest.raises(teal.NotFound, match="'bad' is not loaded"):
            attached.model("bad")
        assert host.workers() == workers
