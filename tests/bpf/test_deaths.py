"""kill -9 of who loads the programs, of the worker, of the host; and a client that scribbles over its BPF memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from desk import CLOSED, DONE, FAILED, Desk

import teal
from teal import bpf

Load = Callable[..., teal.Model]
OpenDesk = Callable[..., tuple[bpf.Session, Desk]]
HERE = Path(__file__).parent
MS = 1000


def eventually(holds: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def map_exists(number: int) -> bool:
    """A BPF map by its number; frees the descriptor at once."""
    library = ctypes.CDLL("libbpf.so.1")
    fd = library.bpf_map_get_fd_by_id(ctypes.c_uint32(number))
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


@pytest.mark.crash
def test_the_loader_is_killed(host: teal.Host, program: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    """Programs attached and in the middle of it: they, their maps and the session are gone, and nobody else noticed."""
    mine = host.load("sum", "builtin:sum")
    for _ in range(3):
        loader = start(str(HERE / "loader.py"), host.address, str(program))
        assert loader.stdout is not None
        number, index = (int(word) for word in loader.stdout.readline().split())
        sent = mine.statistics().requests
        eventually(lambda sent=sent: mine.statistics().requests > sent + 500)  # type: ignore[misc]
        assert map_exists(number)
        before = {worker.pid for worker in host.statistics().workers}
        loader.send_signal(signal.SIGKILL)
        loader.wait()
        for _ in range(20):
            assert mine([1.0, 2.0])["sum"].numpy() == 3.0
        eventually(lambda: len(host.statistics().clients) == 1)
        eventually(lambda number=number: not map_exists(number))  # type: ignore[misc]
        assert {worker.pid for worker in host.statistics().workers} == before
        assert index >= 0
    host.unload("sum")


@pytest.mark.crash
def test_the_worker_is_killed(program: Path, open_desk: OpenDesk) -> None:
    with teal.Host() as host:
        host.load("sleep", "builtin:sleep", idempotent=False)
        session, desk = open_desk(host.model("sleep"), slots=4)
        running, waiting = desk.send(5000 * MS), desk.send(1)
        worker = host.statistics().workers[0].pid
        eventually(lambda: host.statistics().workers[0].state == "running")
        os.kill(worker, signal.SIGKILL)
        assert desk.finish(running)[0] == FAILED
        assert desk.finish(waiting) == (DONE, 1)  # the next worker was told of the session, and bound the slot anew
        assert desk.finish(desk.send(2)) == (DONE, 2)
        assert session.statistics().failed == 1
        assert host.statistics().restarts == 1
        session.close()


@pytest.mark.crash
def test_the_host_is_killed(program: Path, open_desk: OpenDesk, start: Callable[..., subprocess.Popen[str]]) -> None:
    """The kernel goes on without verdicts: take() says that the session is closed."""
    process = start(str(HERE / "host.py"), f"bpf-{os.getpid()}")
    assert process.stdout is not None
    attached = teal.connect(process.stdout.readline().strip())
    session, desk = open_desk(attached.model("sum"), slots=4, x=(2,))
    assert desk.sum(2.0) == 2.0
    process.send_signal(signal.SIGKILL)
    process.wait()
    eventually(lambda: desk.send(1.0) == CLOSED)
    session.close()
    attached.close()


def test_nothing_stays_behind(load: Load, program: Path) -> None:
    model = load("builtin:sum")
    for _ in range(3):  # the first of them opens what stays open
        before = len(os.listdir("/proc/self/fd"))
        with bpf.Session(model, slots=4, x=(2,)) as session:
            desk = Desk(program, session)
            with open(f"/proc/self/fdinfo/{session.memory_fd}") as facts:
                number = int(next(line.split()[1] for line in facts if line.startswith("map_id")))
            assert desk.sum(1.0) == 1.0
            desk.close()
        eventually(lambda number=number: not map_exists(number))  # type: ignore[misc]
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("seed", range(3))
def test_scribbling_over_the_memory(seed: int, host: teal.Host, load: Load, open_desk: OpenDesk) -> None:
    """Whoever holds the map may write anything anywhere in it: others are served right, and the worker lives."""
    model = load("builtin:sum")
    dice = random.Random(seed)
    session, desk = open_desk(model, slots=8, x=(2,))
    worker = host.statistics().workers[0].pid
    memory = np.frombuffer(mmap.mmap(session.memory_fd, session.nbytes), np.uint32)
    interesting = [0, 1, 7, 64, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        for _ in range(200):
            at = dice.randrange(len(memory))
            memory[at : at + dice.choice([1, 1, 16, 256])] = dice.choice([*interesting, dice.randrange(1 << 32)])
        for _ in range(8):
            desk.step("send_one")  # whatever that means by now
        assert model([1.0, 2.0])["sum"].numpy() == 3.0
    session.close()
    assert model([2.0, 2.0])["sum"].numpy() == 4.0
    assert [one.pid for one in host.statistics().workers] == [worker]
