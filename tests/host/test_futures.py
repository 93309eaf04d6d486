"""Futures: many at once, awaited, cancelled, asked from several threads, and left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "open"


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Iterator[teal.Host]:
    """A host for a test that closes it."""
    host = teal.Host()
    yield host
    host.close(drain=False)


def test_a_thousand_in_flight(load: Any) -> None:
    model = load("builtin:sum")
    futures = [model.submit(np.full(3, i, np.float32)) for i in range(1000)]
    assert [float(future.result()[0].numpy()) for future in reversed(futures)] == [3 * i for i in reversed(range(1000))]
    assert all(future.done() and future.exception() is None for future in futures)


def test_results_are_kept(load: Any) -> None:
    future = load("builtin:sum").submit([1.0, 2.0])
    out = future.result()
    assert future.result() is out
    assert (future.done(), future.running(), future.cancel(), future.cancelled()) == (True, False, False, False)
    assert future.exception() is None


def test_errors_are_kept(load: Any) -> None:
    future = load("toy_kernels:fails").submit("value")
    error = future.exception()
    assert isinstance(error, teal.KernelFailed)
    for _ in range(2):
        with pytest.raises(teal.KernelFailed) as caught:
            future.result()
        assert caught.value is error


def test_wrong_arguments_fail_at_once(load: Any) -> None:
    model = load("builtin:sum")
    with pytest.raises(teal.InvalidArgument):
        model.submit(np.zeros(3))
    with pytest.raises(teal.InvalidArgument):
        model.submit(y=1)


# ---- asyncio -------------------------------------------------------------------------------------------------------


def test_five_hundred_awaits(load: Any) -> None:
    model = load("builtin:sum")

    async def main() -> list[float]:
        outs = await asyncio.gather(*(model.submit(np.full(2, i, np.float32)) for i in range(500)))
        return [float(out[0].numpy()) for out in outs]

    assert asyncio.run(main()) == [2 * i for i in range(500)]


def test_the_loop_runs_meanwhile(load: Any, gate: Path) -> None:
    model = load("toy_kernels:gate")

    async def main() -> int:
        future = model.submit(str(gate), 4)

        async def opens() -> None:
            await asyncio.sleep(0)
            gate.touch()

        out, _ = await asyncio.gather(future, opens())
        return int(out[0].numpy())

    assert asyncio.run(main()) == 4


def test_awaited_twice_and_after_its_end(load: Any, gate: Path) -> None:
    model = load("toy_kernels:gate")

    async def main() -> None:
        future = model.submit(str(gate), 4)
        waiting = [asyncio.ensure_future(future) for _ in range(3)]
        await asyncio.sleep(0)
        gate.touch()
        outs = [await waiter for waiter in waiting]
        assert outs[0] is outs[1] is outs[2] is await future

    asyncio.run(main())


def test_errors_are_raised_where_they_are_awaited(load: Any, gate: Path) -> None:
    fails, gated = load("toy_kernels:fails"), load("toy_kernels:gate")

    async def main() -> None:
        with pytest.raises(teal.KernelFailed, match="plain"):
            await fails.submit("value")
        with pytest.raises(teal.DeadlineExceeded):
            await gated.submit(str(gate), deadline=0.02)
        gate.touch()

    asyncio.run(main())


def test_a_cancelled_task_cancels_its_request(load: Any, gate: Path) -> None:
    model = load("toy_kernels:Order")

    async def main() -> None:
        blocker = model.submit(str(gate))
        while not blocker.running():
            await asyncio.sleep(0)
        future = model.submit("never")

        async def waits() -> Any:
            return await future

        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()
        late = model.submit("late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(late, 0.01)
        assert late.cancelled()
        gate.touch()
        await blocker

    asyncio.run(main())
    assert model("read")[0].size == 0


def test_a_loop_that_closes_before_the_answer(load: Any, gate: Path) -> None:
    model = load("toy_kernels:gate")
    future = model.submit(str(gate), 6)
    loop = asyncio.new_event_loop()

    async def waits() -> None:
        await future

    task = loop.create_task(waits())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    gate.touch()
    assert int(future.result()[0].numpy()) == 6

    async def again() -> int:
        return int((await future)[0].numpy()) + int((await model.submit(str(gate), 1))[0].numpy())

    assert asyncio.run(again()) == 7
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task


def test_loops_in_several_threads(load: Any) -> None:
    model = load("builtin:sum")
    sums: list[float] = []

    async def main() -> float:
        outs = await asyncio.gather(*(model.submit([float(i)]) for i in range(50)))
        return sum(float(out[0].numpy()) for out in outs)

    threads = [threading.Thread(target=lambda: sums.append(asyncio.run(main()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [sum(range(50))] * 4


# ---- cancel --------------------------------------------------------------------------------------------------------


def test_cancel_what_waits(load: Any, gate: Path, counted: Any) -> None:
    model = load("toy_kernels:Order")
    blocker = model.submit(str(gate))
    while not blocker.running():
        pass
    futures = [model.submit(str(i)) for i in range(10)]
    for future in futures[::2]:
        assert future.cancel()
        assert not future.cancel()
        assert (future.done(), future.running(), future.cancelled()) == (True, False, True)
        with pytest.raises(teal.Cancelled) as caught:
            future.result()
        assert (caught.value.source, caught.value.reason) == ("client", "cancel() was called")
    assert not any(future.done() for future in futures[1::2])
    gate.touch()
    for future in futures[1::2]:
        future.result()
    assert [tag.decode() for tag in model("read")[0].numpy()] == ["1", "3", "5", "7", "9"]
    numbers = counted(model)
    assert (numbers.requests, numbers.cancelled) == (12, 5)


def test_what_has_effects_is_not_cancelled_once_it_runs(load: Any, gate: Path) -> None:
    model = load("toy_kernels:gate")
    future = model.submit(str(gate), 3)
    while not future.running():
        pass
    assert not future.cancel()
    assert not future.done()
    gate.touch()
    assert int(future.result()[0].numpy()) == 3
    assert not future.running()


def test_what_is_pure_is_dropped_while_it_runs(load: Any, gate: Path, counted: Any) -> None:
    model = load("toy_kernels:pure_gate")
    future = model.submit(str(gate), 3)
    while model.statistics().in_flight == 0:
        pass
    assert future.cancel()
    assert future.cancelled()
    later = model.submit(str(gate), 4)
    gate.touch()
    assert int(later.result()[0].numpy()) == 4
    assert counted(model).cancelled == 1


def test_cancel_races_with_the_answer(load: Any, counted: Any) -> None:
    model = load("builtin:sum")
    cancelled = 0
    for i in range(300):
        future = model.submit([1.0, float(i)])
        if i % 3:
            future.done()
        if future.cancel():
            cancelled += 1
            assert future.cancelled()
        else:
            assert float(future.result()[0].numpy()) == 1 + i
    model([0.0])  # comes after all of them, so the worker has seen them
    numbers = counted(model)
    assert (numbers.requests, numbers.cancelled) == (301, cancelled)


# ---- threads and callbacks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["toy_kernels:sized", "builtin:sum"])
def test_asked_from_several_threads(load: Any, source: str) -> None:
    """An answer that comes in a region of its own can be fetched once; everybody gets the same."""
    model = load(source)
    for attempt in range(5):
        future = model.submit(np.float32([attempt]) if "sum" in source else np.int64(5000 * (attempt + 1) ** 3))
        outs: list[teal.Outputs] = []
        threads = [
            threading.Thread(target=lambda future=future, outs=outs: outs.append(future.result())) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outs) == 6
        assert all(out is outs[0] for out in outs)


def test_callbacks(load: Any, gate: Path) -> None:
    model = load("toy_kernels:gate")
    called: list[teal.Future] = []
    arrived = threading.Semaphore(0)

    def callback(future: teal.Future) -> None:
        called.append(future)
        arrived.release()

    future = model.submit(str(gate), 1)
    for _ in range(3):
        future.add_done_callback(callback)
    assert not called
    gate.touch()
    for _ in range(3):
        arrived.acquire()
    assert called == [future] * 3
    future.add_done_callback(callback)  # at once
    assert called == [future] * 4
    cancelled = model.submit(str(gate), 1)
    cancelled.cancel()
    cancelled.add_done_callback(callback)
    arrived.acquire()
    assert called[-1] is future or called[-1] is cancelled


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_callback_that_raises_harms_nobody(load: Any) -> None:
    model = load("builtin:sleep")
    arrived = threading.Event()
    bad, good = model.submit(2000), model.submit(2000)
    bad.add_done_callback(lambda future: 1 / 0)
    good.add_done_callback(lambda future: arrived.set())
    assert arrived.wait(30)


def test_futures_that_nobody_keeps(load: Any, host: teal.Host) -> None:
    model = load("toy_kernels:Order")
    for i in range(50):
        model.submit(str(i))
    gc.collect()
    assert [tag.decode() for tag in model("read")[0].numpy()] == [str(i) for i in range(50)]  # they run all the same


# ---- the end -------------------------------------------------------------------------------------------------------


def test_close_waits_for_what_is_in_flight() -> None:
    with teal.Host() as host:
        model = host.load("sleep", "builtin:sleep")
        futures = [model.submit(2000) for _ in range(20)]
    assert [int(future.result()[0].numpy()) for future in futures] == [2000] * 20
    assert futures[0].done()
    with pytest.raises(teal.Closed):
        model.submit(1)


def test_close_without_waiting(own: teal.Host, gate: Path) -> None:
    model, pure = own.load("gate", "toy_kernels:gate"), own.load("pure", "toy_kernels:pure_gate")
    running = model.submit(str(gate))
    while not running.running():
        pass
    waiting = [pure.submit(str(gate), 1), model.submit(str(gate))]
    own.close(drain=False)
    for future in (running, *waiting):  # the one that ran, too: its worker was ended by the host
        with pytest.raises(teal.Cancelled) as caught:
            future.result()
        assert (caught.value.source, caught.value.reason) == ("host", "the host is stopping")


def test_awaiting_while_the_host_closes(own: teal.Host, gate: Path) -> None:
    model = own.load("gate", "toy_kernels:gate")
    closer = threading.Thread(target=lambda: own.close(drain=False))

    async def main() -> None:
        future = model.submit(str(gate))
        while not future.running():
            await asyncio.sleep(0)
        task = asyncio.ensure_future(future)
        await asyncio.sleep(0)
        closer.start()
        with pytest.raises(teal.TealError):
            await task

    asyncio.run(main())
    closer.join()


@pytest.mark.parametrize("how", ["result", "await", "callback"])
def test_hanging_up_while_somebody_waits(own: teal.Host, gate: Path, how: str) -> None:
    """A client that hangs up tells its own waiters so, whatever the request does."""
    own.load("gate", "toy_kernels:gate")
    client = teal.connect(own.address)
    future = client.model("gate").submit(str(gate))
    while not future.running():
        pass
    ended: list[BaseException | None] = []

    def waits() -> None:
        try:
            if how == "await":
                asyncio.run(asyncio.wait_for(_awaited(future), 60))
            else:
                future.result()
        except BaseException as error:
            ended.append(error)

    called = threading.Event()
    if how == "callback":
        future.add_done_callback(lambda future: called.set())
    thread = threading.Thread(target=waits)
    thread.start()
    client.close()
    thread.join(60)
    gate.touch()
    assert not thread.is_alive()
    assert isinstance(ended[0], teal.Closed)
    assert how != "callback" or called.wait(30)


async def _awaited(future: teal.Future) -> Any:
    return await future


def test_a_callback_that_closes_the_host(own: teal.Host) -> None:
    model = own.load("sleep", "builtin:sleep")
    closed = threading.Event()

    def close(future: teal.Future) -> None:
        own.close()
        closed.set()

    model.submit(2000).add_done_callback(close)
    assert closed.wait(60)
    with pytest.raises(teal.Closed):
        model(1)
