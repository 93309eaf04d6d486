"""Events and ``after=``: what runs when, from Python."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

import numpy as np
import pytest
from tests.conftest import Load, unique

import teal

ONE = np.array([1.0, 2.0], np.float32)


def test_request_waits_for_event(host: teal.Host, load: Load) -> None:
    model = load("builtin:identity")
    event = host.event()
    late = model.submit(ONE, after=event)
    assert np.array_equal(model(ONE)[0], ONE)  # others pass it by
    assert not late.done()
    assert not event.done()
    assert event.signal()
    assert not event.signal()
    assert not event.cancel()
    assert np.array_equal(late.result()[0], ONE)
    event.wait()
    assert "came" in repr(event)


def test_chain_and_several(host: teal.Host, load: Load) -> None:
    model = load("builtin:identity")
    start = host.event()
    first = model.submit(ONE, after=start)
    second = model.submit(ONE * 2, after=first)
    third = model.submit(ONE * 3, after=[first, second, start])
    assert not any(each.done() for each in (first, second, third))
    start.signal()
    assert np.array_equal(third.result()[0], ONE * 3)
    assert first.done()
    assert second.done()
    assert np.array_equal(model.submit(ONE, after=[third, second]).result()[0], ONE)  # settled ones have come
    with pytest.raises(teal.InvalidArgument, match=r"\$\.after: 8 to wait for, expected at most 7"):
        model.submit(ONE, after=[host.event() for _ in range(8)])


@pytest.mark.parametrize("settle", [False, True])
def test_bad_end_cancels(host: teal.Host, load: Load, settle: bool) -> None:
    model = load("builtin:spin")
    bad = model.submit(np.int64(-1))
    if settle:
        assert isinstance(bad.exception(), teal.KernelFailed)
    with pytest.raises(teal.Cancelled, match=r"dependency.*after=") as caught:
        model.submit(np.int64(1), after=bad).result()
    assert caught.value.source == "dependency"
    chain = model.submit(np.int64(1), after=model.submit(np.int64(1), after=bad))
    assert isinstance(chain.exception(), teal.Cancelled)


def test_dropped_or_cancelled_event_cancels(host: teal.Host, load: Load) -> None:
    model = load("builtin:identity")
    event = host.event()
    first = model.submit(ONE, after=event)
    event.cancel()
    with pytest.raises(teal.Cancelled):
        first.result()
    with pytest.raises(teal.Cancelled):
        event.wait()
    with pytest.raises(teal.Busy):
        host.event().rearm()
    event.rearm()
    assert not event.done()
    second = model.submit(ONE, after=event)
    event.signal()
    second.result()
    third = model.submit(ONE, after=host.event())
    gc.collect()
    assert isinstance(third.exception(), teal.Cancelled)  # nobody can signal it any more


def test_cancel_and_deadline_of_the_waiting(host: teal.Host, load: Load) -> None:
    model = load("builtin:identity")
    event = host.event()
    cancelled, expired = model.submit(ONE, after=event), model.submit(ONE, after=event, deadline=0.01)
    assert cancelled.cancel()
    assert isinstance(expired.exception(), teal.DeadlineExceeded)
    event.signal()
    assert isinstance(cancelled.exception(), teal.Cancelled)
    with pytest.raises(TimeoutError):
        host.event().wait(0.001)


def test_awaited(host: teal.Host, load: Load) -> None:
    model = load("builtin:identity")

    async def main() -> None:
        event, other = host.event(), host.event()
        future = model.submit(ONE, after=event)
        waiting = asyncio.ensure_future(_wait(event))
        await asyncio.sleep(0)
        event.signal()
        await waiting
        assert np.array_equal((await future)[0], ONE)
        await event
        other.cancel()
        with pytest.raises(teal.Cancelled):
            await other

    asyncio.run(main())


async def _wait(event: teal.Event) -> None:
    await event


def test_from_another_thread_and_host(host: teal.Host, load: Load) -> None:
    model = load("builtin:identity")
    with teal.Host(unique()) as other:
        remote = other.load("far", "builtin:sleep")
        event = other.event()
        bad = remote.submit(np.int64(-1))
        after_event = model.submit(ONE, after=event)
        after_request = model.submit(ONE, after=[remote.submit(np.int64(1_000)), event])
        after_bad = model.submit(ONE, after=bad)
        thread = threading.Thread(target=event.signal)
        thread.start()
        assert np.array_equal(after_event.result()[0], ONE)
        assert np.array_equal(after_request.result()[0], ONE)
        assert isinstance(after_bad.exception(), teal.Cancelled)
        thread.join()


@pytest.mark.parametrize("wrong", [3, "x", object(), [None], [1]])
def test_wrong_after(host: teal.Host, load: Load, wrong: object) -> None:
    model = load("builtin:identity")
    with pytest.raises(teal.InvalidArgument, match=r"\$\.after"):
        model.submit(ONE, after=wrong)
    assert np.array_equal(model(ONE)[0], ONE)


def test_lines_are_given_back(host: teal.Host, load: Load) -> None:
    model = load("builtin:identity")
    for _ in range(3000):
        event = host.event()
        future = model.submit(ONE, after=event)
        event.signal()
        future.result()


def test_forked_child_leaves_it_alone(host: teal.Host, load: Load) -> None:
    model = load("builtin:identity")
    event = host.event()
    future = model.submit(ONE, after=event)
    if (child := os.fork()) == 0:
        try:
            event.signal()
        except teal.Closed:
            del event
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert not event.done()
    event.signal()
    future.result()
