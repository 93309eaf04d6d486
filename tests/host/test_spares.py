"""Spare workers take the place of one that dies; those that die themselves cost nobody anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal
from teal.host import wire
from teal.host.process import WorkerProcess
from teal.host.residence import Residence


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        pass


def pool_of(host: teal.Host) -> teal.PoolStatistics:
    return host.statistics().pools[0]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def test_a_spare_takes_over(mlp_path: Path) -> None:
    others = children()
    with teal.Host(spares=1) as host:
        model = host.load("mlp", mlp_path, threads=1)
        echo = host.load("echo", "builtin:identity")
        counter = host.load("counter", "toy_kernels:double")
        x = np.ones((1, 64), np.float32)
        expected = model(x)[0].numpy().copy()
        for turn in range(1, 4):
            until(lambda: pool_of(host).spares == 1)
            before = host.statistics().workers[0].pid
            (spare,) = children() - others - {before}
            kill(before)
            until(lambda before=before: host.statistics().workers[0].pid not in (0, before))  # type: ignore[misc]
            assert host.statistics().workers[0].pid == spare
            assert np.array_equal(model(x)[0].numpy(), expected)
            assert echo(np.arange(3))[0].numpy().tolist() == [0, 1, 2]
            assert counter(np.arange(3))[0].numpy().tolist() == [0, 2, 4]
            assert pool_of(host).spares_used == turn


def test_a_spare_has_run_what_workers_are_called_with(mlp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each kind of inputs; one that comes later does so as well."""
    ran: list[tuple[int, list[Any]]] = []  # process and inputs

    async def ask(self: WorkerProcess, order: Any, *more: Any) -> Any:
        answer = await asked(self, order, *more)
        if isinstance(order, wire.WarmUp):
            ran.append((self.pid, [given and (given[0], tuple(given[1])) for given in order.inputs]))
        return answer

    asked = WorkerProcess.ask
    monkeypatch.setattr(WorkerProcess, "ask", ask)
    with teal.Host(spares=1) as host:
        model = host.load("mlp", mlp_path, threads=1)
        until(lambda: pool_of(host).spares == 1)
        for rows in (1, 3, 1, 3):
            model(np.ones((rows, 64), np.float32))
        until(lambda: len(ran) == 2 and pool_of(host).spares == 1)
        first = {pid for pid, _ in ran}
        assert [inputs for _, inputs in ran] == [[("float32", (1, 64))], [("float32", (3, 64))]]
        kill(host.statistics().workers[0].pid)
        until(lambda: len(ran) == 4 and pool_of(host).spares == 1)
        assert {pid for pid, _ in ran[2:]}.isdisjoint(first)
        assert model(np.ones((3, 64), np.float32))[0].numpy().shape == (3, 8)


def test_one_that_still_loads_is_not_counted(mlp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = threading.Event(), threading.Event()
    load = Residence.load_in_spare

    async def slow(self: Residence, *args: Any) -> None:
        begun.set()
        while not gate.is_set():
            await asyncio.sleep(0.001)
        await load(self, *args)

    monkeypatch.setattr(Residence, "load_in_spare", slow)
    with teal.Host(spares=1) as host:
        until(lambda: pool_of(host).spares == 1)
        host.load("mlp", mlp_path, threads=1)
        begun.wait()
        assert pool_of(host).spares == 0
        gate.set()
        until(lambda: pool_of(host).spares == 1)


def test_a_spare_that_dies_is_replaced_and_nobody_notices(mlp_path: Path) -> None:
    others = children()
    with teal.Host(spares=1) as host:
        model = host.load("mlp", mlp_path, threads=1)
        until(lambda: pool_of(host).spares == 1)
        (spare,) = children() - others - {host.statistics().workers[0].pid}
        kill(spare)
        until(lambda: spare not in children())
        assert model(np.ones((1, 64), np.float32))[0].shape == (1, 8)
        until(lambda: pool_of(host).spares == 1)
        assert (pool_of(host).restarts, pool_of(host).spares_used) == (0, 0)


def test_what_is_unloaded_and_replaced_is_so_in_the_spare(mlp_path: Path) -> None:
    with teal.Host(spares=1) as host:
        host.load("gone", mlp_path, threads=1)
        host.load("mlp", mlp_path, threads=1)
        until(lambda: pool_of(host).spares == 1)
        host.load("mlp", mlp_path, threads=1)
        host.unload("gone")
        before = host.statistics().workers[0].pid
        kill(before)
        until(lambda: host.statistics().workers[0].pid not in (0, before))
        assert host.model("mlp")(np.ones((1, 64), np.float32))[0].shape == (1, 8)
        assert {info.name for info in host.models()} == {"mlp"}
        with pytest.raises(teal.NotFound):
            host.model("gone")


def test_several_at_once(mlp_path: Path) -> None:
    with teal.Host(workers=2, spares=1) as host:
        model = host.load("mlp", mlp_path, threads=1)
        until(lambda: pool_of(host).spares == 1)
        for worker in host.statistics().workers:
            kill(worker.pid)
        until(lambda: pool_of(host).restarts == 2)
        assert model(np.ones((1, 64), np.float32))[0].shape == (1, 8)
        until(lambda: pool_of(host).spares == 1)


def test_nothing_is_left(mlp_path: Path) -> None:
    before = children()
    with teal.Host(spares=2) as host:
        host.load("mlp", mlp_path, threads=1)
    assert children() == before


def test_wrong_numbers() -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.spares"):
        teal.Host(spares=9)
