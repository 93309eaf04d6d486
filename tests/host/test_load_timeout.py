"""A load that never returns: its time ends, its worker is replaced, the other models of the pool go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEAL_TEST_MARK", str(tmp_path / "being-made"))
    return tmp_path / "being-made"


@pytest.fixture
def own(mark: Path) -> Iterator[teal.Host]:
    """A host of its own, for its workers are replaced; they know the mark."""
    with teal.Host(pools={"two": {"workers": 2}}) as host:
        yield host


def in_thread(call: Any) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


STUCK = "'never' was not loaded within {} s and is given up; the worker that sits in it is replaced"


def test_it_is_given_up_and_others_go_on(own: teal.Host, mark: Path) -> None:
    model = own.load("double", "toy_kernels:double")
    [worker] = [w.pid for w in own.statistics().workers if w.pool == "default"]
    thread, errors = in_thread(lambda: own.load("never", "toy_kernels:NeverMade", timeout=1))
    while not mark.exists():
        pass
    answered = 0
    while thread.is_alive():  # calls go on before, during and after the change of workers
        answered += int(model(np.int64(1))[0].numpy()) == 2
    assert answered > 0
    [error] = errors
    assert isinstance(error, teal.DeadlineExceeded)
    assert str(error).startswith(STUCK.format(1))
    while worker in [w.pid for w in own.statistics().workers]:
        assert int(model(np.int64(1))[0].numpy()) == 2
    assert int(model(np.int64(1))[0].numpy()) == 2
    assert int(own.load("more", "toy_kernels:first")(0)[0].numpy()) == 1  # later loads are not held up
    numbers = own.statistics()
    assert (numbers.failed_with_worker, numbers.restarts) == (0, 1)
    assert [info.name for info in own.models()] == ["double", "more"]


def test_what_its_worker_runs_is_finished_first(own: teal.Host, mark: Path, tmp_path: Path) -> None:
    gate = own.load("gate", "toy_kernels:gate")
    running = gate.submit(str(tmp_path / "open"), 5)
    waiting = gate.submit(str(tmp_path / "open"), 6)
    while not running.running():
        pass
    with pytest.raises(teal.DeadlineExceeded, match="and is given up"):
        own.load("never", "toy_kernels:NeverMade", timeout=0.5)
    (tmp_path / "open").touch()
    assert (int(running.result()[0].numpy()), int(waiting.result()[0].numpy())) == (5, 6)
    assert own.statistics().failed_with_worker == 0


def test_in_a_pool_of_two(own: teal.Host) -> None:
    model = own.load("double", "toy_kernels:double", pool="two")
    with pytest.raises(teal.DeadlineExceeded, match="and is given up"):
        own.load("never", "toy_kernels:NeverMade", timeout=0.5, pool="two")
    assert int(model(np.int64(1))[0].numpy()) == 2
    assert int(own.load("never", "toy_kernels:first", pool="two")(0)[0].numpy()) == 1  # its name is free


def test_a_load_behind_it(own: teal.Host, mark: Path) -> None:
    thread, errors = in_thread(lambda: own.load("never", "toy_kernels:NeverMade", timeout=3))
    while not mark.exists():
        pass
    with pytest.raises(teal.DeadlineExceeded, match="its pool is busy with another load"):
        own.load("other", "toy_kernels:first", timeout=0.2)
    with pytest.raises(teal.DeadlineExceeded, match="another load or unload of it is under way"):
        own.load("never", "toy_kernels:first", timeout=0.2)
    assert int(own.load("patient", "toy_kernels:first")(0)[0].numpy()) == 1  # once the other was given up
    thread.join()
    assert isinstance(errors[0], teal.DeadlineExceeded)


def test_a_client_that_leaves_while_it_loads(own: teal.Host, mark: Path) -> None:
    other = teal.connect(own.address)
    thread, errors = in_thread(lambda: other.load("never", "toy_kernels:NeverMade", timeout=1))
    while not mark.exists():
        pass
    other.close()
    thread.join()
    assert isinstance(errors[0], teal.Closed)
    before = own.statistics().restarts
    while own.statistics().restarts == before:
        time.sleep(0.01)
    assert int(own.load("m", "toy_kernels:first")(0)[0].numpy()) == 1


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), 1e9])
def test_timeouts_that_are_none(host: teal.Host, timeout: float) -> None:
    with pytest.raises(teal.InvalidArgument, match=r"\$\.timeout: .*, expected more than 0 and at most 86400 seconds"):
        host.load("x", "builtin:sum", timeout=timeout)
