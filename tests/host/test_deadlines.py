"""Deadlines fire whatever the worker does, and what they end is really over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "open"


def test_in_time(load: Any) -> None:
    model = load("builtin:sum")
    assert float(model([1.0, 2.0], deadline=30)[0].numpy()) == 3
    assert float(model.submit([1.0, 2.0], deadline=30).result()[0].numpy()) == 3
    assert float(model.prepare([1.0, 2.0], deadline=30)()[0].numpy()) == 3


@pytest.mark.parametrize("deadline", [0, 0.0, -1, -1e8, 1e-12, -0.0])
def test_passed_already(load: Any, counted: Any, deadline: float) -> None:
    model = load("toy_kernels:Order")
    with pytest.raises(teal.DeadlineExceeded, match="the deadline passed before the answer came"):
        model("never", deadline=deadline)
    future = model.submit("never", deadline=deadline)
    assert isinstance(future.exception(), teal.DeadlineExceeded)
    assert isinstance(future.exception(), TimeoutError)
    assert model("read")[0].size == 0  # neither ran
    numbers = counted(model)
    assert (numbers.requests, numbers.expired) == (3, 2)


@pytest.mark.parametrize("deadline", [float("nan"), float("inf"), -float("inf"), 1e9, 1e300])
def test_what_is_no_deadline(load: Any, deadline: float) -> None:
    model = load("builtin:sum")
    for call in (model, model.submit, model.prepare):
        with pytest.raises(teal.InvalidArgument, match=r"\$\.deadline: .*, expected seconds from now"):
            call([1.0], deadline=deadline)


@pytest.mark.parametrize("kernel", ["gate", "pure_gate"])
@pytest.mark.parametrize("how", ["call", "result", "exception", "done"])
def test_while_it_runs(load: Any, counted: Any, gate: Path, kernel: str, how: str) -> None:
    """The worker is busy with that very request until the gate opens, which is after the deadline was noticed."""
    model = load(f"toy_kernels:{kernel}")
    if how == "call":
        with pytest.raises(teal.DeadlineExceeded):
            model(str(gate), 1, deadline=0.02)
    else:
        future = model.submit(str(gate), 1, deadline=0.02)
        if how == "done":
            while not future.done():
                pass
        elif how == "result":
            with pytest.raises(teal.DeadlineExceeded):
                future.result()
        assert isinstance(future.exception(), teal.DeadlineExceeded)
        assert not future.cancel()
        assert not future.cancelled()
    gate.touch()
    assert int(model(str(gate), 2)[0].numpy()) == 2
    numbers = counted(model)
    assert (numbers.requests, numbers.expired, numbers.failed) == (2, 1, 0)


def test_while_it_waits(load: Any, counted: Any, gate: Path) -> None:
    model = load("toy_kernels:Order")
    blocker = model.submit(str(gate))
    while not blocker.running():
        pass
    late = [model.submit(f"late {i}", deadline=0.01) for i in range(20)]
    patient = model.submit("patient", deadline=60)
    for future in late:
        with pytest.raises(teal.DeadlineExceeded):
            future.result()
    assert not patient.done()
    gate.touch()
    patient.result()
    assert [tag.decode() for tag in model("read")[0].numpy()] == ["patient"]
    numbers = counted(model)
    assert (numbers.requests, numbers.expired, numbers.cancelled) == (23, 20, 0)


def test_without_anybody_asking(host: teal.Host, load: Any, gate: Path) -> None:
    """The host ends what is too late though nobody waits for it: it would count against the client's limit."""
    model = load("toy_kernels:gate")
    blocker = model.submit(str(gate), 0)
    while not blocker.running():
        pass
    futures = [model.submit(str(gate), 1, deadline=0.005) for _ in range(10)]
    while model.statistics().expired < 10:
        pass
    gate.touch()
    assert all(isinstance(future.exception(), teal.DeadlineExceeded) for future in futures)
    blocker.result()
    assert host.statistics().queued == 0


def test_a_prepared_call_counts_from_each_call(load: Any, gate: Path) -> None:
    model = load("toy_kernels:pure_gate")
    call = model.prepare(str(gate), 3, deadline=0.05)
    with pytest.raises(teal.DeadlineExceeded):
        call()
    gate.touch()
    while True:  # its slot is out of use until the worker has let go of it
        try:
            out = call()
            break
        except teal.Busy:
            continue
        except teal.DeadlineExceeded:  # a busy machine
            continue
    assert int(out[0].numpy()) == 3


def test_memory_of_a_late_request_is_not_given_out_again(load: Any, gate: Path) -> None:
    model = load("toy_kernels:pure_gate")
    x = str(gate)
    with pytest.raises(teal.DeadlineExceeded):
        model(x, 1, deadline=0.01)
    futures = [model.submit(x, tag) for tag in (2, 3, 4)]
    gate.touch()
    assert [int(future.result()[0].numpy()) for future in futures] == [2, 3, 4]


def test_deadlines_of_many(load: Any) -> None:
    """Each gets either its answer or DeadlineExceeded, and the counts agree."""
    model = load("builtin:spin")
    futures = [model.submit(300, deadline=0.001 * (i % 40)) for i in range(200)]
    answers = [future.exception() for future in futures]
    late = sum(isinstance(error, teal.DeadlineExceeded) for error in answers)
    assert late + sum(error is None for error in answers) == 200
    while (numbers := model.statistics()).in_flight:
        pass
    assert (numbers.requests, numbers.expired) == (200, late)


def test_timeout_is_no_deadline(load: Any, gate: Path) -> None:
    model = load("toy_kernels:pure_gate")
    future = model.submit(str(gate), 5)
    for timeout in (0, 0.001, 0.02):
        before = time.monotonic()
        with pytest.raises(TimeoutError, match="the request goes on") as caught:
            future.result(timeout=timeout)
        assert not isinstance(caught.value, teal.TealError)
        assert time.monotonic() - before >= timeout
    with pytest.raises(TimeoutError):
        future.exception(timeout=0.001)
    gate.touch()
    assert int(future.result(timeout=60)[0].numpy()) == 5


def test_numpy_numbers_as_deadline(load: Any) -> None:
    model = load("builtin:sum")
    assert float(model([1.0], deadline=np.float32(30))[0].numpy()) == 1
    with pytest.raises(teal.InvalidArgument):
        model([1.0], deadline="soon")
