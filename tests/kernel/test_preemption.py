"""Kernels that give their worker up in the middle: generator functions at their yields, builtins at any instruction."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

Made = Callable[..., teal.Model]


def until(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.001)


@pytest.fixture(scope="module")
def sliced() -> Iterator[teal.Host]:
    """One worker whose requests take turns."""
    with teal.Host(quantum="50us") as host:
        yield host


@pytest.fixture
def made(sliced: teal.Host) -> Iterator[Made]:
    """``made(source)``: a model of that host, unloaded after the test."""
    names: list[str] = []

    def load(source: str, **options: Any) -> teal.Model:
        names.append(f"m{len(names)}")
        return sliced.load(names[-1], source, **options)

    yield load
    loaded = {info.name for info in sliced.models()}
    for name in loaded & set(names):
        sliced.unload(name)


def in_bytes(path: Path) -> Any:
    return np.frombuffer(str(path).encode(), np.uint8)


# ---- what they answer ------------------------------------------------------------------------------------------------


def test_a_generator_answers_with_what_it_returns(load: Any) -> None:
    total = load("yielding_kernels:total")
    assert int(total(np.int64(1000))[0].numpy()) == 499500
    assert total.info.preemption == "yields"
    out = load("yielding_kernels:squared")(np.int64(7))
    assert (int(out["n"].numpy()), int(out["square"].numpy())) == (7, 49)
    assert load("yielding_kernels:words")(["a", "bc"])[0].numpy().tolist() == [b"A", b"BC"]


def test_what_it_raises_or_forgets(load: Any) -> None:
    model = load("yielding_kernels:raises")
    with pytest.raises(teal.KernelFailed, match="ValueError: 3 is too much"):
        model(np.int64(3))
    assert int(model(np.int64(0))[0].numpy()) == 0
    with pytest.raises(teal.KernelFailed, match="returned None"):
        load("yielding_kernels:returns_nothing")(np.int64(3))


@pytest.mark.parametrize(
    ("source", "how"),
    [
        ("builtin:spin", "anywhere"),
        ("builtin:sum", "anywhere"),
        ("builtin:identity", "anywhere"),
        ("yielding_kernels:Held", "yields"),
        ("yielding_kernels:long_spin", "none"),
    ],
)
def test_info_says_how(load: Any, source: str, how: str) -> None:
    assert load(source).info.preemption == how


def test_an_engines_model_runs_to_its_end(load: Any, onnx_model: Any) -> None:
    assert load(onnx_model("g (float[N] x) => (float[N] y) { y = Neg(x) }")).info.preemption == "none"


# ---- turns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("long", ["builtin:spin", "yielding_kernels:total"])
def test_short_requests_pass_a_long_one(made: Made, long: str) -> None:
    slow, quick = made(long), made("builtin:spin")
    future = slow.submit(np.int64(2_000_000))
    for _ in range(20):
        assert int(quick(np.int64(10))[0].numpy()) >= 10_000
    assert not future.done()
    answer = int(future.result()[0].numpy())
    assert answer >= 2_000_000_000 if long == "builtin:spin" else answer == 1_999_999_000_000
    numbers = slow.statistics()
    assert (numbers.preemptions if long == "builtin:spin" else numbers.yields) > 0
    assert numbers.resumed == numbers.preemptions + numbers.yields
    assert numbers.dropped == 0


def test_many_take_turns_and_each_is_right(made: Made) -> None:
    total, squares = made("yielding_kernels:total"), made("yielding_kernels:squared")
    sums = made("builtin:sum")
    x = np.arange(1 << 20, dtype=np.float32) % 1000
    counts = [20_000 + 17 * i for i in range(12)]
    futures = [total.submit(np.int64(n)) for n in counts]
    of_sums = [sums.submit(x) for _ in range(8)]
    of_squares = [squares.submit(np.int64(n)) for n in range(8)]
    assert [int(f.result()[0].numpy()) for f in futures] == [n * (n - 1) // 2 for n in counts]
    assert [int(f.result()["square"].numpy()) for f in of_squares] == [n * n for n in range(8)]
    expected = float(x.astype(np.float64).sum())
    assert all(float(f.result()[0].numpy()) == expected for f in of_sums)
    assert total.statistics().yields > 0


def test_the_run_stage_is_time_on_the_core(made: Made) -> None:
    slow, other = made("builtin:spin"), made("builtin:spin")
    futures = [model.submit(np.int64(200_000)) for model in (slow, other)]
    for future in futures:
        future.result()
    until(lambda: slow.statistics().stages["run"].count == 1)  # counted once it has been answered
    run = slow.statistics().stages["run"]
    assert run.max_us >= 200_000
    # Both take at least 200 ms of one core, so each of them was away for nearly as long.
    assert slow.statistics().preemptions > 100


def test_what_cannot_leave_is_counted(made: Made) -> None:
    model = made("yielding_kernels:long_spin")
    model(np.float64(0.02))
    until(lambda: model.statistics().cannot_preempt == 1)
    assert model.statistics().preemptions == 0


# ---- signals ---------------------------------------------------------------------------------------------------------


def test_python_signal_handlers_of_a_kernel_still_run(made: Made) -> None:
    busy, counts = made("builtin:spin"), made("yielding_kernels:Interrupted")
    future = busy.submit(np.int64(300_000))
    for _ in range(20):
        assert int(counts(np.int64(5))[0].numpy()) == 5
    assert not future.done()
    assert int(future.result()[0].numpy()) >= 300_000_000


def test_signals_from_outside_disturb_no_run(made: Made) -> None:
    busy, pid = made("builtin:spin"), made("yielding_kernels:process")
    other = made("yielding_kernels:Interrupted")
    assert int(other(np.int64(0))[0].numpy()) == 0  # its handler is there now
    worker = int(pid()[0].numpy())
    futures = [busy.submit(np.int64(200_000)) for _ in range(2)]
    while not all(future.done() for future in futures):
        os.kill(worker, signal.SIGUSR1)
        os.kill(worker, signal.SIGURG)  # the preemptor's own, from anybody
    assert all(int(future.result()[0].numpy()) >= 200_000_000 for future in futures)


# ---- ended early -----------------------------------------------------------------------------------------------------


def test_a_cancel_ends_a_pure_one_at_its_next_yield(load: Any, tmp_path: Path) -> None:
    model, ended = load("yielding_kernels:held_purely"), load("yielding_kernels:ended")
    future = model.submit(in_bytes(tmp_path / "never"))
    until((tmp_path / "never.begun").exists)
    assert future.cancel()
    assert ended()[0].numpy().tolist()[-2:] == [b"closed", b"finally"]  # the worker is free, without anybody's quantum
    assert (tmp_path / "never.left").exists()
    until(lambda: model.statistics().dropped == 1)


def test_a_deadline_ends_it(load: Any, tmp_path: Path) -> None:
    model, ended = load("yielding_kernels:Held"), load("yielding_kernels:ended")
    with pytest.raises(teal.DeadlineExceeded):
        model(in_bytes(tmp_path / "never"), deadline=0.05)
    assert ended()[0].numpy().tolist()[-2:] == [b"closed", b"finally"]
    assert (tmp_path / "never.left").exists()


def test_one_with_effects_is_not_cancelled_once_it_has_begun(load: Any, tmp_path: Path) -> None:
    model = load("yielding_kernels:Held")
    future = model.submit(in_bytes(tmp_path / "soon"))
    until((tmp_path / "soon.begun").exists)
    assert not future.cancel()
    (tmp_path / "soon").touch()
    assert int(future.result()[0].numpy()) == 1


def test_one_that_will_not_be_closed_is_let_go_all_the_same(load: Any, tmp_path: Path) -> None:
    model, other = load("yielding_kernels:stubborn"), load("yielding_kernels:squared")
    with pytest.raises(teal.DeadlineExceeded):
        model(in_bytes(tmp_path / "never"), deadline=0.05)
    assert int(other(np.int64(3))["square"].numpy()) == 9
    assert (tmp_path / "never.left").exists()
