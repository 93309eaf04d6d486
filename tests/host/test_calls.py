"""Calls: by whom, how many at once, in which order, and what they give back."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal


def together(works: list[Callable[[], None]]) -> None:
    """Runs them in a thread each, from the same moment on. Raises what the first one raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        try:
            start.wait()
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.fixture(scope="module")
def crew() -> Any:
    """A host with two workers."""
    with teal.Host(workers=2) as host:
        yield host


def test_outputs(load: Any) -> None:
    out = load("toy_kernels:norms")(np.ones((2, 3), np.float32))
    norm, mean = out
    assert isinstance(out, tuple)
    assert (len(out), out.names, out[0] is norm, out["mean"] is mean, out[-1] is mean) == (
        2,
        ("norm", "mean"),
        True,
        True,
        True,
    )
    assert dict(out.items()) == {"norm": norm, "mean": mean}
    assert out[:1] == (norm,)
    assert repr(out).startswith("Outputs(norm=teal.Tensor(")
    with pytest.raises(teal.NotFound, match=r"output 'x'; the outputs are \['norm', 'mean'\]"):
        out["x"]
    with pytest.raises(IndexError):
        out[2]


def test_inputs_are_a_mapping(load: Any) -> None:
    x = load("toy_kernels:add").new_inputs(x=("int64", (2,)), y=("int64", ()))
    assert (list(x), len(x), "x" in x, "z" in x) == (["x", "y"], 2, True, False)
    assert "x" in repr(x)
    with pytest.raises(KeyError):
        x["z"]


def test_optional_inputs_may_be_left_out_of_new_inputs(load: Any) -> None:
    model = load("toy_kernels:add")
    x = model.new_inputs(x=("int64", (2,)))
    assert list(x) == ["x"]
    x["x"].numpy()[...] = 1
    assert model(**x)[0].numpy().tolist() == [11, 11]


def test_the_model_says_what_it_is(host: teal.Host) -> None:
    model = host.load("named", "builtin:sum")
    assert (model.name, model.version, repr(model)) == ("named", 1, "teal.Model('named', version=1)")
    assert "pinned" in repr(host.load("named", "builtin:sum", version=7))
    host.unload("named")


@pytest.mark.parametrize("threads", [8])
def test_threads_call_one_model(load: Any, counted: Any, threads: int) -> None:
    model = load("builtin:sum")

    def work(number: int) -> Callable[[], None]:
        def calls() -> None:
            for i in range(150):
                given = np.full(1 + (number + i) % 5, number, np.float32)
                assert float(model(given)[0].numpy()) == number * given.size

        return calls

    together([work(number) for number in range(threads)])
    numbers = counted(model)
    assert (numbers.requests, numbers.failed) == (threads * 150, 0)


def test_threads_call_several_models(load: Any, mlp_path: Path) -> None:
    total, mlp, double = load("builtin:sum"), load(mlp_path, threads=1), load("toy_kernels:double")
    x = np.random.default_rng(5).random((4, 64), np.float32)
    expected = mlp(x)[0].numpy().copy()

    def sums() -> None:
        for i in range(100):
            assert float(total(np.arange(i, dtype=np.float32))[0].numpy()) == i * (i - 1) // 2

    def perceptrons() -> None:
        for _ in range(100):
            assert np.array_equal(mlp(x)[0].numpy(), expected)

    def doubles() -> None:
        for i in range(100):
            assert int(double(np.int64(i))[0].numpy()) == 2 * i

    def prepared() -> None:
        inputs = mlp.new_inputs(batch=4)
        inputs["x"].numpy()[...] = x
        call = mlp.prepare(**inputs)
        for _ in range(100):
            assert np.array_equal(call()[0].numpy(), expected)

    together([sums, perceptrons, doubles, prepared] * 2)


def test_threads_make_the_first_call(host: teal.Host) -> None:
    """Sessions, homes and slots are made by whoever comes first; there are no two of them."""
    other = teal.connect(host.address)
    host.load("first", "toy_kernels:double")
    together([lambda: other.model("first")(np.arange(100_000)) and None for _ in range(8)])
    assert len(other._connection.sessions) == 1
    other.close()
    host.unload("first")


def test_threads_that_need_big_slots_at_once(load: Any) -> None:
    """Each grows the shared memory; none may find its room taken by another and give up."""
    model = load("toy_kernels:first")

    def work() -> None:
        for size in (1 << 21, 1 << 22, 3 << 20):
            assert int(model(np.zeros(size, np.uint8))[0].numpy()) == 1

    together([work] * 6)


def test_priority_decides_the_order(load: Any, tmp_path: Path) -> None:
    model = load("toy_kernels:Order")
    gate = tmp_path / "open"
    blocker = model.submit(str(gate))
    while not blocker.running():
        pass
    wanted = [
        ("low", -5),
        ("first of the equal", 0),
        ("high", 3),
        ("second of the equal", 0),
        ("highest", 2**31 - 1),
        ("lowest", -(2**31)),
    ]
    futures = [model.submit(tag, priority=priority) for tag, priority in wanted]
    assert not any(future.done() for future in futures)
    gate.touch()
    for future in futures:
        future.result()
    order = [tag.decode() for tag in model("read")[0].numpy()]
    assert order == ["highest", "high", "first of the equal", "second of the equal", "low", "lowest"]


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 1.5, "high", None])
def test_priorities_that_are_none(load: Any, priority: Any) -> None:
    model = load("builtin:sum")
    for call in (model, model.submit, model.prepare):
        with pytest.raises(teal.InvalidArgument, match=r"\$\.priority"):
            call([1.0], priority=priority)
    x = model.new_inputs(x=(1,))
    x["x"].numpy()[...] = 4
    with pytest.raises(teal.InvalidArgument, match=r"\$\.priority"):
        model(**x, priority=priority)
    assert float(model(**x)[0].numpy()) == 4  # its memory is still to be had


def test_two_workers_run_at_once(crew: teal.Host, tmp_path: Path) -> None:
    model = crew.load("gate", "toy_kernels:gate")
    futures = [model.submit(str(tmp_path / f"open{i}"), i) for i in range(3)]
    while sum(future.running() for future in futures) < 2:
        pass
    assert not any(future.done() for future in futures)
    running = next(i for i in (1, 0) if futures[i].running())
    (tmp_path / f"open{running}").touch()
    assert int(futures[running].result()[0].numpy()) == running
    for i in range(3):
        (tmp_path / f"open{i}").touch()
    assert [int(future.result()[0].numpy()) for future in futures] == [0, 1, 2]


def test_two_workers_share_the_work(crew: teal.Host) -> None:
    pids = crew.load("pid", "toy_kernels:worker_pid")
    sleep = crew.load("sleep", "builtin:sleep")
    seen: set[int] = set()
    while len(seen) < 2:
        naps = [sleep.submit(500) for _ in range(4)]
        seen |= {int(future.result()[0].numpy()) for future in [pids.submit() for _ in range(8)]}
        for nap in naps:
            nap.result()
    assert seen == {worker.pid for worker in crew.statistics().workers}
    total = crew.load("sum", "builtin:sum")

    def work() -> None:
        for i in range(100):
            assert float(total(np.full(3, i, np.float32))[0].numpy()) == 3 * i

    together([work] * 4)


def test_state_is_a_workers_own(crew: teal.Host, tmp_path: Path) -> None:
    """A class is made once in each worker."""
    model = crew.load("counter", "toy_kernels:Counter")
    totals = [int(model(1, "")[0].numpy()) for _ in range(20)]
    assert sum(total == 1 for total in totals) <= 2
    assert max(totals) >= 10


def test_a_call_of_itself_from_a_callback(load: Any) -> None:
    model = load("builtin:sum")
    answers: list[float] = []
    arrived = threading.Event()

    def again(future: teal.Future) -> None:
        answers.append(float(model([2.0, 3.0])[0].numpy()))
        arrived.set()

    model.submit([1.0]).add_done_callback(again)
    arrived.wait(30)
    assert answers == [5]


def test_outputs_by_name_and_as_an_input(load: Any) -> None:
    echo, total = load("builtin:identity"), load("builtin:sum")
    out = echo(np.arange(4, dtype=np.float32))
    assert dict(out)["y"] is out["y"]
    assert out.keys() == ("y",)
    assert [name in out for name in ("y", "z", out[0])] == [True, False, True]
    copies = echo.statistics().copies_in
    assert echo(x=out)["y"].numpy().tolist() == [0, 1, 2, 3]
    assert echo(echo(out))[0].shape == (4,)  # no axis for the tuple that they are
    assert float(total(echo(out))[0].numpy()) == 6
    assert echo.statistics().copies_in == copies
    two = load("builtin:identity:2")(np.ones(2), np.ones(3))
    with pytest.raises(teal.InvalidArgument, match=r"inputs\[0\]: 2 outputs of a call, expected one; give outputs\["):
        echo(two)


def test_handles_stay_in_their_process(host: teal.Host, load: Any) -> None:
    model = load("builtin:identity")
    out = model(np.ones(1))
    call = model.prepare(np.ones(1))
    for handle, advice in (
        (host, "host.address"),
        (model, "host.address"),
        (call, "host.address"),
        (model.submit(np.ones(1)), "result()"),
        (out, ".numpy()"),
        (out[0], ".numpy()"),
    ):
        with pytest.raises(TypeError, match=re.escape(advice)):
            pickle.dumps(handle)
        with pytest.raises(TypeError, match=re.escape(advice)):
            copy.deepcopy(handle)
    assert pickle.loads(pickle.dumps(out[0].numpy())).tolist() == [1]
