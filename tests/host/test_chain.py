"""Pipelines: outputs that are still to come as inputs of other calls."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Load, OnnxModel, unique

import teal

ONE = np.array([1.0, 2.0, 4.0], np.float32)
Counted = Callable[[teal.Model], Any]


def test_future_as_input(host: teal.Host, load: Load, counted: Counted) -> None:
    double = load("toy_kernels:pure_double")
    total = load("toy_kernels:total")
    before = total.statistics().copies_in
    a = double.submit(ONE)
    b = total.submit(a)
    assert float(b.result()[0].numpy()) == 14.0
    assert np.array_equal(a.result()[0], ONE * 2)  # it has its own answer all the same
    assert float(total.submit(x=double.submit(ONE)["y"]).result()[0].numpy()) == 14.0
    assert float(total(double.submit(ONE).output(0))[0].numpy()) == 14.0
    assert np.array_equal(double(double.submit(double.submit(ONE)))[0], ONE * 8)
    numbers = counted(total)
    assert numbers.chained == 3
    assert numbers.relayed == 0
    assert numbers.copies_in == before
    assert a.output("y").result() is a.result()[0]
    assert "'y' of 'm0'" in repr(a["y"])


def test_size_only_the_run_can_tell(host: teal.Host, load: Load) -> None:
    count, double, total = load("toy_kernels:count_up"), load("toy_kernels:pure_double"), load("toy_kernels:total")
    for n in (0, 5, 1000, 7, 20_000, 3, 100_000):  # some are larger than planned: they come in a region of their own
        expected = n * (n - 1)
        assert float(total.submit(double.submit(count.submit(np.int64(n)))).result()[0].numpy()) == expected
        a = count.submit(np.int64(n))
        later = total.submit(a)
        assert a.result()[0].shape == (n,)
        assert float(later.result()[0].numpy()) * 2 == expected
        assert float(total.submit(a).result()[0].numpy()) * 2 == expected  # it has settled: an array like any other


def test_onnx_stages(host: teal.Host, load: Load, onnx_model: OnnxModel) -> None:
    positive = load(onnx_model("g (float[N] x) => (int64[1, M] y) { y = NonZero(x) }", "nonzero"))
    negate = load(onnx_model("g (int64[1, M] x) => (int64[1, M] y) { y = Neg(x) }", "neg"))
    for _ in range(3):
        found = negate.submit(positive.submit(np.array([0, 3, 0, 1], np.float32))).result()[0]
        assert np.array_equal(found, [[-1, -3]])


def test_strings(host: teal.Host, load: Load) -> None:
    words, how_many = load("toy_kernels:words"), load("toy_kernels:how_many")
    text = ["a few words", "é", "b " * 3000]
    for _ in range(3):
        assert int(how_many.submit(words.submit(text)).result()[0].numpy()) == 3004
    assert int(how_many.submit(words.submit(["one two"])).result()[0].numpy()) == 2
    echo = load("builtin:identity")
    assert int(how_many.submit(echo.submit(words.submit(["x y z"]))).result()[0].numpy()) == 3


def test_builtin_takes_what_it_does_not_know(host: teal.Host, load: Load) -> None:
    count, echo = load("toy_kernels:count_up"), load("builtin:identity")
    for n in (3, 0, 12):
        assert np.array_equal(echo.submit(count.submit(np.int64(n))).result()[0], np.arange(n))
    assert np.array_equal(echo(echo.submit(echo.submit(ONE)))[0], ONE)


def test_fan_out_and_in(host: teal.Host, load: Load) -> None:
    double, add = load("toy_kernels:pure_double"), load("toy_kernels:add")
    event = host.event()
    a = double.submit(ONE, after=event)
    many = [double.submit(a) for _ in range(20)]
    several = [add.submit(x=one, y=other) for one, other in itertools.pairwise(many)]
    both = add.submit(a, a)
    assert not any(future.done() for future in (a, *many, *several, both))
    del a
    gc.collect()
    event.signal()
    assert all(np.array_equal(future.result()[0], ONE * 4) for future in many)
    assert all(np.array_equal(future.result()[0], ONE * 8) for future in several)
    assert np.array_equal(both.result()[0], ONE * 4)
    assert np.array_equal(add.submit(many[0], ONE).result()[0], ONE * 5)  # an array beside one that has settled


def test_long_chain_in_a_loop(host: teal.Host, load: Load, counted: Counted) -> None:
    double = load("toy_kernels:pure_double")
    for _ in range(30):
        future = double.submit(ONE)
        for _ in range(9):
            future = double.submit(future)
        assert np.array_equal(future.result()[0], ONE * 1024)
        del future
    assert counted(double).bindings < 100  # the same slots find each other again


def test_inputs_of_their_own_are_not_used_again(host: teal.Host, load: Load) -> None:
    """``new_inputs`` are called again while the answer before is still to be read by another request."""
    double = load("toy_kernels:pure_double")
    x = double.new_inputs(n=3)
    event = host.event()
    x["x"].numpy()[...] = ONE
    a = double.submit(**x)
    b = double.submit(a, after=event)
    a.result()
    for factor in range(5):
        x["x"].numpy()[...] = factor
        double(**x)
    event.signal()
    assert np.array_equal(b.result()[0], ONE * 4)


@pytest.mark.parametrize("settle", [False, True])
def test_stage_that_fails(host: teal.Host, load: Load, settle: bool) -> None:
    spin, echo = load("builtin:spin"), load("builtin:identity")
    bad = spin.submit(np.int64(-1))
    if settle:
        assert isinstance(bad.exception(), teal.KernelFailed)
    third = echo.submit(echo.submit(bad))
    with pytest.raises(teal.Cancelled, match=r"dependency.*stage 'm[01]'") as caught:
        third.result()
    assert caught.value.source == "dependency"


def test_stage_that_is_cancelled_or_late(host: teal.Host, load: Load) -> None:
    double = load("toy_kernels:pure_double")
    event = host.event()
    a, late = double.submit(ONE, after=event), double.submit(ONE, after=event, deadline=0.01)
    b, c = double.submit(a), double.submit(late)
    d = double.submit(a, deadline=0.01)
    assert a.cancel()
    for future in (b, c):
        with pytest.raises(teal.Cancelled, match="stage 'm0'"):
            future.result()
    assert isinstance(d.exception(), (teal.DeadlineExceeded, teal.Cancelled))
    event.signal()


def test_what_does_not_suit(host: teal.Host, load: Load) -> None:
    count, norms, ends = load("toy_kernels:count_up"), load("toy_kernels:norms"), load("toy_kernels:ends")
    total, how_many = load("toy_kernels:total"), load("toy_kernels:how_many")
    with pytest.raises(teal.InvalidArgument, match=r"\$\.inputs\[0\].*rank 1.*expects rank 2") as caught:
        norms.submit(count.submit(np.int64(3))).result()  # found by the worker
    assert caught.value.path == "$.inputs[0].shape"
    with pytest.raises(teal.InvalidArgument, match=r"float32, input 'words' expects BYTES"):
        how_many.submit(count.submit(np.int64(3)))
    with pytest.raises(teal.InvalidArgument, match=r"rank 0, input 'x' expects rank 1"):
        total.submit(ends.submit(ONE)["high"])  # its shape is known
    with pytest.raises(teal.InvalidArgument, match=r"outputs \['low', 'high'\]; give one"):
        total.submit(ends.submit(ONE))
    with pytest.raises(teal.NotFound, match="'middle'"):
        ends.submit(ONE)["middle"]
    with pytest.raises(teal.NotFound, match="output 2"):
        ends.submit(ONE).output(2)
    with pytest.raises(teal.InvalidArgument, match="prepared call runs many times"):
        total.prepare(count.submit(np.int64(3)))
    with pytest.raises(teal.InvalidArgument, match="expected at most 7"):
        total.submit(count.submit(np.int64(1)), after=[host.event() for _ in range(7)])


def test_across_versions(host: teal.Host, load: Load) -> None:
    double = load("toy_kernels:pure_double")
    stop = threading.Event()

    def reload() -> None:
        while not stop.is_set():
            host.load(double.name, "toy_kernels:pure_double")

    thread = threading.Thread(target=reload)
    thread.start()
    try:
        for _ in range(100):
            assert np.array_equal(double.submit(double.submit(double.submit(ONE))).result()[0], ONE * 8)
    finally:
        stop.set()
        thread.join()


def test_chain_longer_than_there_are_slots(host: teal.Host, load: Load) -> None:
    """``h = step.submit(h)``: what has ended is not kept by what comes after it."""
    words, double = load("toy_kernels:words"), load("toy_kernels:pure_double")
    for model, value in ((words, ["a b"]), (double, np.zeros(3, np.float32))):
        step = model.submit(value)
        for number in range(3000):
            step = model.submit(step)
            if number % 100 == 99:
                while not step.done():
                    pass
        assert step.result()[0].shape in ((2,), (3,))


def test_nothing_is_left(host: teal.Host, load: Load) -> None:
    count, total = load("toy_kernels:count_up"), load("toy_kernels:total")
    session = count._session.core
    for n in (10, 30_000, 10):  # dropped at every point
        total.submit(count.submit(np.int64(n)))
        total.submit(count.submit(np.int64(n))).result()
        count.submit(np.int64(n)).result()
        gc.collect()
    while count.statistics().in_flight + total.statistics().in_flight:
        pass
    host.empty((1,))  # what was dropped while a worker used it goes when the next memory is taken
    count._session._reclaim()
    gc.collect()
    assert session.slots_out == 0


def test_pools_and_hosts(load: Load) -> None:
    """From elsewhere: through this process, and counted."""
    with teal.Host(unique(), pools={"far": {"workers": 1}}) as host, teal.Host(unique()) as other:
        near, far = (
            host.load("near", "toy_kernels:pure_double"),
            host.load("far", "toy_kernels:pure_double", pool="far"),
        )
        total = other.load("total", "toy_kernels:total")
        event = host.event()
        a = near.submit(ONE, after=event)
        b = far.submit(a)
        c = total.submit(b)
        d = near.submit(ONE, after=b)
        late = far.submit(a, deadline=0.01)
        stopped = far.submit(a)
        seen = threading.Event()
        c.add_done_callback(lambda future: seen.set())
        assert not c.done()
        assert not c.running()
        assert stopped.cancel()
        assert isinstance(late.exception(), teal.DeadlineExceeded)
        with pytest.raises(TimeoutError):
            b.result(0.001)
        event.signal()
        assert float(c.result()[0].numpy()) == 28.0
        assert np.array_equal(b.result()[0], ONE * 4)
        assert np.array_equal(d.result()[0], ONE * 2)
        assert seen.wait(10)
        assert isinstance(stopped.exception(), teal.Cancelled)
        assert far.statistics().relayed == 3
        assert total.statistics().relayed == 1
        bad = near.submit(ONE, after=host.event())
        gc.collect()
        with pytest.raises(teal.Cancelled, match="stage 'near'"):
            far.submit(bad).result()

        async def awaited() -> Any:
            return await far.submit(near.submit(ONE))

        assert np.array_equal(asyncio.run(awaited())[0], ONE * 4)


def test_worker_dies_in_a_stage(tmp_path: Path) -> None:
    """An idempotent stage runs again, and the next one runs then; else the next one is cancelled."""
    with teal.Host(unique(), workers=2) as host:
        dies = host.load("dies", "toy_kernels:dies_once", idempotent=True)
        mortal = host.load("mortal", "toy_kernels:dies_once", idempotent=False)
        echo = host.load("echo", "builtin:identity")
        pid = echo.submit(dies.submit([str(tmp_path / "a")])).result()[0]
        assert int(pid.numpy()) != os.getpid()
        with pytest.raises(teal.Cancelled, match="stage 'mortal'"):
            echo.submit(mortal.submit([str(tmp_path / "b")])).result()
