"""kill -9 of hosts: workers go by themselves, clients hear of it, and the next host of that name starts at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import watch
from crash_host import CrashHost, unused_name
from nursery import Child, Nursery
from witness import load_all

import teal


def all_gone(pids: set[int]) -> None:
    watch.until(lambda: not any(watch.alive(pid) for pid in pids), f"the end of workers {pids}")


def reach(address: str) -> teal.Host:
    """Attaches as soon as somebody listens."""

    def attempt() -> teal.Host | None:
        try:
            return teal.connect(address)
        except (teal.NotFound, teal.PeerDied):
            return None

    host = watch.until(attempt, f"a host at {address}")
    assert isinstance(host, teal.Host)
    return host


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["abstract", "path"])
def test_killed_at_random(
    kind: str, nursery: Nursery, model_file: Path, dice: random.Random, rounds: Callable[[int], int], tmp_path: Path
) -> None:
    """Under one name, again and again, while clients load, submit, run and read. Nothing is cleaned in between."""
    name = unused_name()
    address = f"@teal/0/{name}" if kind == "abstract" else str(tmp_path / "teal.sock")
    for _ in range(rounds(15)):
        host = nursery.start("host", address=address, workers=1)
        attached = reach(address)
        clients: list[Child] = []
        workers: set[int] = set()
        moment = dice.random()
        if moment > 0.2:  # else: while it has just begun
            load_all(attached, model_file if dice.random() < 0.2 else None)
            clients = [
                nursery.start("client", address=address, seed=dice.getrandbits(32), model_file=str(model_file))
                for _ in range(dice.randint(0, 3))
            ]
            workers = watch.children(host.pid)
            time.sleep(dice.random() * 0.15)
        waiting = attached.model("sleep").submit(np.int64(60_000_000)) if moment > 0.6 else None
        workers |= watch.children(host.pid)
        host.kill()
        if waiting is not None:
            with pytest.raises(teal.PeerDied, match="host: its process is gone"):
                waiting.result()
        with pytest.raises((teal.PeerDied, teal.NotFound)):
            attached.load("more", "builtin:identity")
        all_gone(workers)
        for client in clients:
            client.kill()
        attached.close()


@pytest.mark.crash
def test_views_outlive_the_host(nursery: Nursery) -> None:
    address = f"@teal/0/{unused_name()}"
    host = nursery.start("host", address=address, workers=1)
    attached = reach(address)
    x = np.arange(1000.0)
    answer = attached.load("identity", "builtin:identity")(x)[0].numpy()
    workers = watch.children(host.pid)
    host.kill()
    all_gone(workers)
    assert np.array_equal(answer, x)
    attached.close()
    assert np.array_equal(answer, x)


BUSY = """
import sys, time
import teal
host = teal.Host(sys.argv[1])
calls = []
for name, source, argument in {calls!r}:
    calls.append(host.load(name, source).submit(argument))
print("ready", flush=True)
time.sleep(3600)
"""
STUBBORN = """
import ctypes
def hold_the_lock(x):
    ctypes.PyDLL(None).sleep(3600)  # no other thread of this interpreter runs meanwhile
"""


@pytest.mark.parametrize(
    "call",
    [
        ("hang", "crash_kernels:misbehave", "hang"),
        ("sleep", "builtin:sleep", 60_000_000),
        ("hold", "stubborn:hold_the_lock", "x"),
    ],
    ids=lambda call: call[0],
)
def test_embedded_host_takes_its_workers_along(call: tuple[str, str, object], tmp_path: Path) -> None:
    """Whatever they do: also a kernel that lets no other thread of the worker run."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parent), *(path for path in sys.path if path)])
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY.format(calls=[call]), unused_name()],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    workers = watch.children(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()
    assert (line, len(workers)) == (b"ready\n", 1)
    try:
        all_gone(workers)
    finally:
        for pid in filter(watch.alive, workers):
            os.kill(pid, signal.SIGKILL)


def test_while_a_load_never_ends(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    host = hosts(workers=1, environment={"CRASH_KERNELS_GATE": str(tmp_path / "never")})
    attached = teal.connect(host.address)
    errors: list[teal.TealError] = []

    def load() -> None:
        try:
            attached.load("slow", "crash_kernels:SlowToLoad")
        except teal.TealError as error:
            errors.append(error)

    loading = threading.Thread(target=load)
    loading.start()
    workers = set(host.workers())
    host.signal(signal.SIGKILL)
    loading.join()
    assert [str(error) for error in errors] == ["host: its process is gone"]
    all_gone(workers)
    attached.close()


def test_every_waiter_hears_of_it(hosts: Callable[..., CrashHost]) -> None:
    """Sync callers, futures and awaiting tasks."""
    host = hosts(workers=1)
    attached = teal.connect(host.address)
    sleep = attached.load("sleep", "builtin:sleep")
    futures = [sleep.submit(60_000_000) for _ in range(3)]
    heard: list[str] = []
    told = threading.Event()
    futures[2].add_done_callback(lambda _: told.set())

    def wait(future: teal.Future) -> None:
        try:
            future.result()
        except teal.PeerDied as error:
            heard.append(str(error))

    waiters = [threading.Thread(target=wait, args=(future,)) for future in futures[:2]]
    for waiter in waiters:
        waiter.start()
    time.sleep(0.05)
    host.kill()
    for waiter in waiters:
        waiter.join()
    assert heard == ["host: its process is gone"] * 2
    assert told.wait(watch.PATIENCE)
    with pytest.raises(teal.PeerDied):
        futures[2].result()
    attached.close()
