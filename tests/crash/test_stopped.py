"""SIGSTOP: a process that is there and does nothing. Nobody waits for it longer than he said he would."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
import signal
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import watch
from crash_host import CrashHost
from nursery import Nursery
from witness import load_all, watching

import teal


def stopped(pid: int) -> None:
    watch.until(lambda: watch.state(pid) == "T", f"process {pid} to stop")


def test_host_stopped(hosts: Callable[..., CrashHost], model_file: Path) -> None:
    """Calls go on; who wants something of the host itself hears within his patience, or gets it when it goes on."""
    host = hosts(workers=2)
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    with watching(host.address) as witness:
        sleep = attached.model("sleep")
        sleep(1)
        host.signal(signal.SIGSTOP)
        stopped(host.pid)
        for _ in range(3):
            witness.goes_on()
        with pytest.raises(teal.DeadlineExceeded):
            sleep(300_000, deadline=0.02)
        with pytest.raises(teal.PeerDied, match=r"did not answer within 0\.2 s"):
            teal.connect(host.address, timeout=0.2)
        loaded: list[teal.Model] = []
        loading = threading.Thread(target=lambda: loaded.append(attached.load("later", "builtin:identity")))
        loading.start()
        witness.goes_on()
        assert not loaded
        host.signal(signal.SIGCONT)
        loading.join()
        assert float(loaded[0](np.float64(3))[0].numpy()) == 3
    attached.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_deadlines_fire_while_workers_are_stopped(workers: int, hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=workers)
    with teal.connect(host.address) as attached:
        identity = attached.load("identity", "builtin:identity")
        x = np.arange(100.0)
        identity(x)
        pids = host.workers()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            stopped(pid)
        with pytest.raises(teal.DeadlineExceeded):
            identity(x, deadline=0.02)
        future = identity.submit(x, deadline=0.02)
        with pytest.raises(teal.DeadlineExceeded):
            future.result()

        async def awaited() -> Any:
            return await identity.submit(x, deadline=0.02)

        with pytest.raises(teal.DeadlineExceeded):
            asyncio.run(awaited())
        patient = identity.submit(x)
        with pytest.raises(TimeoutError):
            patient.result(timeout=0.02)
        dropped = identity.submit(x)
        assert dropped.cancel()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert np.array_equal(patient.result()[0].numpy(), x)
        assert np.array_equal(identity(x)[0].numpy(), x)
        assert host.workers() == pids
        watch.until(lambda: attached.statistics().active == 0, "the end of every request")
        assert attached.statistics().restarts == 0


def test_one_worker_stopped_at_random(
    hosts: Callable[..., CrashHost], model_file: Path, dice: random.Random, rounds: Callable[[int], int]
) -> None:
    """The other one goes on, whatever the stopped one was doing; what it ran waits, or runs again when it is killed."""
    host = hosts(workers=2)
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    stop = threading.Event()

    def call(name: str, errors: list[str]) -> None:
        with teal.connect(host.address) as client:
            model = client.model(name)
            count = 0
            while not stop.is_set():
                x = np.full(50, float(count))
                try:
                    # A request that the stopped worker holds cannot be answered: its caller gives it up.
                    if not np.array_equal(model(x, deadline=1.0)[0].numpy(), x):
                        errors.append("wrong answer")
                    else:
                        answered[name] += 1
                except teal.DeadlineExceeded:
                    pass
                except teal.TealError as error:
                    errors.append(str(error))
                count += 1

    attached.load("identity-2", "builtin:identity")
    answered = {"identity": 0, "identity-2": 0}
    errors: list[str] = []
    callers = [threading.Thread(target=call, args=(name, errors)) for name in answered]
    for caller in callers:
        caller.start()
    try:
        for _ in range(rounds(12)):
            pid = dice.choice(host.workers())
            os.kill(pid, signal.SIGSTOP)
            before = sum(answered.values())
            watch.until(
                lambda before=before: errors or sum(answered.values()) > before + 20, f"answers while {pid} is stopped"
            )
            # One that was stopped while it held the dispatch role is killed, so that the others go on.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            before = sum(answered.values())
            watch.until(lambda before=before: errors or sum(answered.values()) > before + 20, "answers")
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert not errors, errors[:5]
    attached.close()


def role_holder(host: CrashHost) -> Callable[[], int]:
    """Who has the dispatch role now, read from the pool's memory as a debugger would."""
    for fd in os.listdir(f"/proc/{host.pid}/fd"):
        path = f"/proc/{host.pid}/fd/{fd}"
        if "memfd:teal" not in os.readlink(path):
            continue
        with open(path, "rb") as file, contextlib.closing(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)) as memory:
            if memory[4096:4100] != b"TPOL":
                continue
        opened = os.open(path, os.O_RDONLY)
        return lambda: int(struct.unpack("<I", os.pread(opened, 4, 4096 + 64))[0]) & 0x3FFFFFFF
    raise AssertionError("the host has no pool region")


@pytest.mark.slow
def test_worker_stopped_in_the_dispatch_role(hosts: Callable[..., CrashHost], nursery: Nursery) -> None:
    """Everybody waits for it then: it is killed, and the role passes on."""
    host = hosts(workers=2)
    attached = teal.connect(host.address)
    identity = attached.load("identity", "builtin:identity")
    holder = role_holder(host)
    for _ in range(2):
        nursery.start("caller", address=host.address)
    x = np.arange(4.0)

    def caught() -> int:
        for pid in host.workers():
            os.kill(pid, signal.SIGSTOP)
            stopped(pid)
            if holder() == pid:
                return pid
            os.kill(pid, signal.SIGCONT)
        return 0

    pid = watch.until(caught, "a worker stopped while it holds the role")
    assert np.array_equal(identity(x)[0].numpy(), x)
    watch.until(lambda: pid not in host.workers() and len(host.workers()) == 2, "a successor")
    assert np.array_equal(identity(x)[0].numpy(), x)
    assert attached.statistics().restarts == 1
    attached.close()


def test_client_stopped_while_it_holds_everything(
    hosts: Callable[..., CrashHost], nursery: Nursery, model_file: Path, tmp_path: Path
) -> None:
    host = hosts(workers=1, limits={"in_flight": 16})
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    attached.load("note", "crash_kernels:note")
    with watching(host.address) as witness:
        flag = tmp_path / "flag"
        calls = [{"path": str(tmp_path / "log"), "line": f"line{i}", "microseconds": 1000} for i in range(400)]
        victim = nursery.start("waiting", address=host.address, model="note", calls=calls, flag=str(flag))
        watch.until(flag.exists, "the victim's requests")
        victim.signal(signal.SIGSTOP)
        stopped(victim.pid)
        for _ in range(3):
            witness.goes_on()
        victim.signal(signal.SIGCONT)
        watch.until(lambda: attached.statistics().active == 0, "the victim's requests to end")
        witness.goes_on()
        victim.signal(signal.SIGSTOP)
        stopped(victim.pid)
        victim.kill()
        watch.until(lambda: len(attached.statistics().clients) == 2, "the end of the victim's session")
    attached.close()
