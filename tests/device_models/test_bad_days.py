"""Device models on bad days: reloads, deaths, hostile clients, kernels that hang. No request is lost, none is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import watch
from crash_host import CrashHost
from trained_models import direct_calls, prepared

import teal
from teal.device.directory import REGIONS
from teal.errors import Closed, PeerDied, TealError

HERE = Path(__file__).parent
pytestmark = pytest.mark.crash


class Other:
    """A client in another process."""

    def __init__(self, address: str, name: str, which: Any, mode: str = "honest") -> None:
        arguments = [address, name, which.load, str(which.path), mode]
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "direct_client.py"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(self.process.communicate()[1][-2000:])

    def end(self) -> None:
        """Raises when an answer was wrong."""
        _, said = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, said[-2000:]


@pytest.fixture
def others(host: teal.Host) -> Iterator[Callable[..., Other]]:
    started: list[Other] = []

    def start(*arguments: Any, **options: Any) -> Other:
        started.append(Other(*arguments, **options))
        return started[-1]

    yield start
    for other in started:
        other.process.kill()
        other.process.communicate()


def test_a_reload_under_direct_calls(pocl: str, host: teal.Host, trained: Any) -> None:
    """Every answer is one version's or the other's, and after load() has returned the new one's."""
    old, new = trained("mllb", 0), trained("mllb", 1)
    model = host.load("again", old.path, device=pocl, path="apk")
    x = old.inputs(4)
    expected = [
        np.asarray(host.load(f"plain{i}", which.path)(x=x)["scores"]).copy() for i, which in enumerate((old, new))
    ]
    stop, wrong = threading.Event(), []

    def caller() -> None:
        client = teal.connect(host.address)
        call, _ = prepared(client.model("again"), x)
        while not stop.is_set():
            found = np.asarray(call()["scores"])
            if not any(np.allclose(found, each, atol=1e-5) for each in expected):
                wrong.append(found.copy())
        client.close()

    callers = [threading.Thread(target=caller) for _ in range(2)]
    call, _ = prepared(model, x)
    for thread in callers:
        thread.start()
    for i in range(10):
        host.load("again", (new, old)[i % 2].path, device=pocl, path="apk")
        for _ in range(3):
            np.testing.assert_allclose(np.asarray(call()["scores"]), expected[(i + 1) % 2], atol=1e-5)
    stop.set()
    for thread in callers:
        thread.join()
    assert not wrong
    assert model.statistics().failed == 0
    for name in ("again", "plain0", "plain1"):
        host.unload(name)


def test_a_pinned_version_that_becomes_current(pocl: str, host: teal.Host, trained: Any) -> None:
    old, new = trained("mllb", 0), trained("mllb", 1)
    x = old.inputs(2)
    call, _ = prepared(host.load("beside", old.path, device=pocl, path="apk"), x)
    old.check(call(), x)
    old.check(call(), x)
    pinned, _ = prepared(host.load("beside", new.path, version=7, device=pocl, path="apk"), x)
    for _ in range(3):
        new.check(call(), x)
        new.check(pinned(), x)
    host.unload("beside")
    with pytest.raises(TealError):
        call()


def test_each_of_a_dozen_clients_goes_directly(pocl: str, host: teal.Host, trained: Any) -> None:
    which = trained("mllb")
    model = host.load("dozen", which.path, device=pocl, path="apk")
    clients = [teal.connect(host.address) for _ in range(12)]
    calls = []
    for client in clients:
        theirs = client.model("dozen")
        calls.append((theirs, *prepared(theirs, which.inputs(2))))
    for theirs, call, array in calls:
        array[:] = x = which.inputs(2)
        which.check(call(), x)
        before = theirs.statistics().paths["direct"]
        assert direct_calls(call, theirs, before + 5) >= before + 5  # of all clients, but only this one calls
    for _ in range(3):  # in turn, with the others' lines in the directory too
        for _, call, array in calls:
            array[:] = x = which.inputs(2)
            which.check(call(), x)
    numbers = model.statistics()
    assert (numbers.fallbacks, numbers.failed, numbers.losses) == (0, 0, 0)
    assert numbers.paths["pl"] == numbers.paths["cpu"] == 0
    for client in clients:
        client.close()
    model.unload()


def test_more_clients_than_a_kernel_takes(pocl: str, host: teal.Host, trained: Any) -> None:
    """More regions than it has arguments: some clients are served by launches, and counted."""
    which = trained("mllb")
    model = host.load("crowd", which.path, device=pocl, path="apk")
    clients = [teal.connect(host.address) for _ in range(REGIONS // 2 + 2)]  # each has two
    for client in clients:
        call, array = prepared(client.model("crowd"), which.inputs(2))
        for _ in range(2):
            array[:] = x = which.inputs(2)
            which.check(call(), x)
    least = REGIONS // 2 - 2
    watch.until(lambda: model.statistics().paths["apk"] >= least, "the count of resident runs")  # counted after answers
    numbers = model.statistics()
    assert numbers.failed == 0
    assert numbers.fallbacks > 0
    for client in clients:
        client.close()
    model.unload()


def test_many_clients(pocl: str, host: teal.Host, trained: Any, others: Any) -> None:
    which = trained("mllb")
    model = host.load("many", which.path, device=pocl, path="apk")
    started = [others(host.address, "many", which) for _ in range(5)]
    call, array = prepared(model, which.inputs(3))
    until = time.monotonic() + 2
    while time.monotonic() < until:
        array[:] = x = which.inputs(3)
        which.check(call(), x)
    for other in started:
        other.end()
    assert model.statistics().failed == 0
    model.unload()


def test_a_hostile_client_disturbs_itself(kind: str, host: teal.Host, trained: Any, others: Any) -> None:
    which = trained("mllb")
    model = host.load("victim", which.path, device=kind, path="apk")
    attackers = [others(host.address, "victim", which, "hostile") for _ in range(2)]
    honest = others(host.address, "victim", which)
    call, array = prepared(model, which.inputs(3))
    until = time.monotonic() + 3
    while time.monotonic() < until:
        array[:] = x = which.inputs(3)
        which.check(call(), x)
    honest.end()
    for attacker in attackers:
        attacker.process.kill()
    numbers = model.statistics()
    assert numbers.losses == 0
    model.unload()


def test_killed_clients(pocl: str, host: teal.Host, trained: Any, others: Any) -> None:
    which = trained("mllb")
    model = host.load("dying", which.path, device=pocl, path="apk")
    call, array = prepared(model, which.inputs(3))
    for _ in range(6):
        other = others(host.address, "dying", which)
        array[:] = x = which.inputs(3)
        which.check(call(), x)
        other.process.kill()
        which.check(call(), x)
    while len(host.statistics().clients) > 1:
        time.sleep(0.01)
    which.check(call(), x)
    direct_calls(call, model)
    model.unload()


def test_killed_workers(kind: str, trained: Any) -> None:
    """Calls go on: those in a line are told that it is lost, and asked again by the ring."""
    which = trained("mllb")
    with CrashHost() as crashing, teal.connect(crashing.address) as host:
        model = host.load("mllb", which.path, device=kind, path="apk")
        call, array = prepared(model, which.inputs(3))
        failed = 0
        for _ in range(4):
            direct = model.statistics().paths["direct"]
            while model.statistics().paths["direct"] == direct:
                call()
            (worker,) = crashing.workers()
            killer = threading.Timer(0.05, os.kill, (worker, signal.SIGKILL))
            killer.start()
            while crashing.workers() in ([worker], []):
                array[:] = x = which.inputs(3)
                try:
                    which.check(call(), x)
                except PeerDied:
                    failed += 1
            killer.join()
        assert failed == 0  # it is pure: whatever was under way ran again


def test_a_killed_host(pocl: str, trained: Any) -> None:
    which = trained("mllb")
    with CrashHost() as crashing, teal.connect(crashing.address) as host:
        model = host.load("mllb", which.path, device=pocl, path="apk")
        call, _ = prepared(model, which.inputs(3))
        direct_calls(call, model, 5)
        workers = crashing.workers()
        crashing.kill()

        def call_on() -> None:
            while True:
                call()

        with pytest.raises((PeerDied, Closed)):
            call_on()
        while any(watch.alive(worker) for worker in workers):
            time.sleep(0.01)


def test_a_forked_child_may_not_call(pocl: str, host: teal.Host, trained: Any) -> None:
    which = trained("mllb")
    model = host.load("forked", which.path, device=pocl, path="apk")
    x = which.inputs(3)
    call, _ = prepared(model, x)
    which.check(call(), x)
    child = os.fork()
    if child == 0:
        try:
            call()
        except TealError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    which.check(call(), x)
    model.unload()


def test_unloading_gives_everything_back(pocl: str, trained: Any) -> None:
    which = trained("linnos")
    with teal.Host(f"back-{os.getpid()}") as host:

        def mapped() -> int:
            (worker,) = host.statistics().workers
            with open(f"/proc/{worker.pid}/maps", encoding="ascii", errors="replace") as maps:
                return sum("memfd:teal" in row for row in maps)

        def once() -> None:
            with teal.connect(host.address) as client:
                model = client.load("back", which.path, device=pocl, path="apk")
                x = which.inputs(3)
                call, _ = prepared(model, x)
                for _ in range(5):
                    which.check(call(), x)
                model.unload()
            while len(host.statistics().clients) > 0:
                time.sleep(0.01)

        once()
        before = mapped()
        for _ in range(5):
            once()
        patience = time.monotonic() + 30  # the worker lets go after the host has said goodbye to the client
        while mapped() > before and time.monotonic() < patience:
            time.sleep(0.01)
        assert mapped() <= before


# ---- kernels that hang -----------------------------------------------------------------------------------------------


@pytest.fixture
def hanging(pocl: str) -> Iterator[CrashHost]:
    paths = os.pathsep.join([str(HERE / "hanging"), str(HERE.parent / "crash"), *(path for path in sys.path if path)])
    with CrashHost(environment={"TEAL_TEST_HANG": "1", "PYTHONPATH": paths}) as crashing:
        yield crashing


def test_a_kernel_that_hangs_takes_its_worker_and_nothing_else(hanging: CrashHost, pocl: str, trained: Any) -> None:
    which = trained("mllb")
    with teal.connect(hanging.address) as host:
        model = host.load("mllb", which.path, device=pocl, path="apk", idempotent=False)
        x = which.inputs(3)
        call, _ = prepared(model, x)
        which.check(call(), x)
        deadly = x.copy()
        deadly[0, 0] = 1e30
        # By the ring: not idempotent, so it fails, with the reason.
        with pytest.raises(PeerDied, match="device kernel did not answer"):
            model.submit(x=deadly).result()
        which.check(call(), x)
        assert model.statistics().losses == 1


def test_a_direct_call_that_hangs_ends(hanging: CrashHost, pocl: str, trained: Any) -> None:
    """Nobody but the worker's watch would notice. After two losses the CPU does it, which does not hang."""
    which = trained("mllb")
    with teal.connect(hanging.address) as host:
        model = host.load("mllb", which.path, device=pocl, path="apk")
        x = which.inputs(3)
        call, array = prepared(model, x)
        direct_calls(call, model, 5)
        array[0, 0] = 1e30
        call()  # lost with the first worker, again with the second, then on the CPU
        while (
            numbers := model.statistics()
        ).losses < 2:  # the answer may be here before the host has heard of the loss
            time.sleep(0.01)
        assert numbers.losses == 2
        assert "on the CPU: its device kernel was lost 2 times" in numbers.note
        array[:] = x
        which.check(call(), x)
        watch.until(lambda: model.statistics().paths["cpu"] >= 2, "the count of the calls that the CPU answered")
