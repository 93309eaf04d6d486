"""A client that vanishes: what it had waiting never runs, what was running is dropped, its memory comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import watch
from crash_host import CrashHost
from nursery import Nursery

import teal


def alone(attached: teal.Host) -> bool:
    return len(attached.statistics().clients) == 1


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_queued_work_never_runs(
    workers: int, how: int, hosts: Callable[..., CrashHost], nursery: Nursery, tmp_path: Path
) -> None:
    """All workers are busy for somebody else; the victim's requests wait in the queue (and, many, in its ring)."""
    host = hosts(workers=workers, limits={"in_flight": 8})
    with teal.connect(host.address) as attached:
        note = attached.load("note", "crash_kernels:note", idempotent=True)
        busy, log = tmp_path / "busy", tmp_path / "log"
        gate = attached.load("gate", "builtin:sleep")
        blocking = [gate.submit(60_000_000) for _ in range(workers)]
        watch.until(lambda: attached.statistics().queued == 0, "busy workers")
        calls = [{"path": str(log), "line": f"line{i}", "microseconds": 0} for i in range(20)]
        victim = nursery.start("waiting", address=host.address, model="note", calls=calls, flag=str(busy))
        watch.until(busy.exists, "the victim's requests")
        watch.until(lambda: attached.statistics().queued >= 8, "the victim's requests in the queue")
        victim.signal(how)
        watch.until(victim.ended, "the victim's end")
        watch.until(lambda: alone(attached), "the end of the victim's session")
        watch.until(lambda: attached.statistics().queued == 0, "an empty queue")
        for future in blocking:
            assert future.cancel()
        for pid in host.workers():  # a sleep that is cancelled still takes its time: end it
            os.kill(pid, signal.SIGKILL)
        for _ in range(3 * workers):
            note(path=str(log), line="mine", microseconds=0)
        assert set(lines(log)) == {"mine"}


def test_running_work_is_dropped(hosts: Callable[..., CrashHost], nursery: Nursery, tmp_path: Path) -> None:
    host = hosts(workers=1)
    with teal.connect(host.address) as attached:
        note = attached.load("note", "crash_kernels:note")
        note(path=str(tmp_path / "warm"), line="x", microseconds=0)
        before = watch.steady(lambda: (watch.descriptors(host.pid), [watch.holdings(pid) for pid in host.workers()]))
        flag, log = tmp_path / "flag", tmp_path / "log"
        calls = [{"path": str(log), "line": f"line{i}", "microseconds": 300_000} for i in range(4)]
        victim = nursery.start("waiting", address=host.address, model="note", calls=calls, flag=str(flag))
        watch.until(lambda: lines(log) == ["line0"], "the first line")
        victim.kill()
        watch.until(lambda: alone(attached), "the end of the victim's session")
        note(path=str(log), line="mine", microseconds=0)
        assert lines(log) == ["line0", "mine"]
        watch.until(lambda: attached.statistics().active == 0, "the end of the last call")
        assert (attached.statistics().restarts, attached.statistics().queued) == (0, 0)
        watch.settled(
            before, lambda: (watch.descriptors(host.pid), [watch.holdings(pid) for pid in host.workers()]), "memory"
        )


def test_close_is_as_good_as_vanishing(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    host = hosts(workers=1)
    log = tmp_path / "log"
    with teal.connect(host.address) as attached:
        note = attached.load("note", "crash_kernels:note")
        other = teal.connect(host.address)
        first = note.submit(path=str(log), line="mine", microseconds=300_000)
        watch.until(lambda: lines(log) == ["mine"], "the first line")
        theirs = [other.model("note").submit(path=str(log), line="theirs", microseconds=0) for _ in range(5)]
        other.close()
        first.result()
        note(path=str(log), line="mine", microseconds=0)
        assert lines(log) == ["mine", "mine"]
        for future in theirs:
            with pytest.raises(teal.TealError):
                future.result()


def test_cancelled_before_it_started_never_runs(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    host = hosts(workers=1)
    log = tmp_path / "log"
    with teal.connect(host.address) as attached:
        note = attached.load("note", "crash_kernels:note")
        first = note.submit(path=str(log), line="first", microseconds=200_000)
        rest = [note.submit(path=str(log), line=f"later{i}", microseconds=0) for i in range(6)]
        assert [future.cancel() for future in rest[::2]] == [True] * 3
        first.result()
        for future in rest[1::2]:
            future.result()
        for future in rest[::2]:
            with pytest.raises(teal.Cancelled):
                future.result()
        note(path=str(log), line="last", microseconds=0)
        assert lines(log) == ["first", "later1", "later3", "later5", "last"]


def test_abandoned_await(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    """An asyncio task that is cancelled takes its waiting request with it."""
    host = hosts(workers=1)
    log = tmp_path / "log"

    async def main(note: Any) -> None:
        first = asyncio.ensure_future(_awaited(note.submit(path=str(log), line="first", microseconds=200_000)))
        second = asyncio.ensure_future(_awaited(note.submit(path=str(log), line="second", microseconds=0)))
        await asyncio.sleep(0.02)
        second.cancel()
        await first
        with pytest.raises(asyncio.CancelledError):
            await second

    async def _awaited(future: teal.Future) -> Any:
        return await future

    with teal.connect(host.address) as attached:
        note = attached.load("note", "crash_kernels:note")
        asyncio.run(main(note))
        note(path=str(log), line="last", microseconds=0)
        assert lines(log) == ["first", "last"]
        assert np.int64(note(path=str(log), line="x", microseconds=0)[0].numpy()) in host.workers()
