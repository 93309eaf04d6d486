"""Numbers: every request is in them once, and the histograms make sense."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal
from teal.host.records import Histogram, merged

STAGES = ("queue", "run", "copy", "wake", "total")


@pytest.fixture
def fresh(host: teal.Host) -> Iterator[Any]:
    """``fresh(source)``: a model under a name that nobody used before, so that all its counters start at nothing."""
    names: list[str] = []

    def load(source: Any) -> teal.Model:
        names.append(f"fresh-{next(_numbers)}")
        return host.load(names[-1], source)

    yield load
    for name in names:
        host.unload(name)


_numbers = itertools.count()


def check(histogram: Histogram) -> None:
    assert 0 <= histogram.p50_us <= histogram.p99_us <= histogram.p999_us <= histogram.max_us
    assert (histogram.count == 0) == (histogram.max_us == 0)


def test_every_request_is_counted_once(fresh: Any, counted: Any) -> None:
    model = fresh("toy_kernels:fails_when_negative")
    before = counted(model)
    for i in range(30):
        if i % 3 == 0:
            with pytest.raises(teal.KernelFailed):
                model(np.int64(-1))
        else:
            model(np.int64(i))
    for _ in range(5):
        with pytest.raises(teal.DeadlineExceeded):
            model(np.int64(1), deadline=0)
    model(np.int64(2))  # comes after all of them, so the worker has seen them
    after = counted(model)
    assert (after.requests, after.failed, after.expired, after.cancelled, after.in_flight) == (36, 10, 5, 0, 0)
    assert before.requests == 0
    assert set(after.stages) == set(STAGES)
    for histogram in after.stages.values():
        check(histogram)
    assert after.stages["run"].count == after.stages["queue"].count == 31  # the late ones never ran
    assert (after.stages["total"].count, after.copies_in, after.copies_out) == (36, 36, 21)
    assert after.bytes_copied == 36 * 8 + 21 * 8


def test_a_wait_shows_in_its_stage(fresh: Any, counted: Any) -> None:
    sleep = fresh("builtin:sleep")
    for _ in range(3):
        sleep(3000)
    stages = counted(sleep).stages
    assert stages["run"].p50_us >= 3000
    assert stages["total"].p50_us >= 3000
    queued = [sleep.submit(3000) for _ in range(4)]
    for future in queued:
        future.result()
    assert counted(sleep).stages["queue"].max_us >= 6000  # the last one waited for those before it


def test_each_version_starts_at_nothing(host: teal.Host, counted: Any) -> None:
    model = host.load("counted", "toy_kernels:first")
    model(0)
    assert counted(model).requests == 1
    host.load("counted", "toy_kernels:second")
    assert counted(model).requests == 0
    model(0)
    model(0)
    assert (counted(model).requests, counted(model).stages["run"].count) == (2, 2)
    pinned = host.load("counted", "toy_kernels:first", version=99)
    pinned(0)
    assert counted(pinned).requests == 1
    host.unload("counted")


def test_calls_of_all_handles_and_clients_count(host: teal.Host, counted: Any) -> None:
    mine = host.load("shared", "toy_kernels:double")
    other = teal.connect(host.address)
    handles = [mine, host.model("shared"), other.model("shared")]
    for handle in handles:
        handle(np.arange(10))
    for handle in handles:
        numbers = counted(handle)
        assert (numbers.requests, numbers.copies_in, numbers.copies_out) == (3, 3, 3)
        assert numbers.stages["total"].count == 3
    other.close()
    while len(host.statistics().clients) > 1:
        pass
    assert counted(mine).copies_in == 3  # what a client saw stays when it goes
    host.unload("shared")


def test_records_are_frozen(host: teal.Host, load: Any) -> None:
    model = load("builtin:sum")
    for record in (model.statistics(), host.statistics(), model.info, model.inputs[0], host.statistics().workers[0]):
        name = dataclasses.fields(record)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, None)


def test_the_host_as_a_whole(host: teal.Host, load: Any, counted: Any) -> None:
    model = load("builtin:sum")
    model([1.0])
    counted(model)
    numbers = host.statistics()
    assert (numbers.pid, numbers.address, numbers.version) == (os.getpid(), host.address, teal.__version__)
    assert numbers.uptime_s > 0
    assert (numbers.restarts, numbers.failed_with_worker, numbers.run_again, numbers.queued, numbers.active) == (
        0,
        0,
        0,
        0,
        0,
    )
    (worker,) = numbers.workers
    assert worker.pool == "default"
    assert worker.state in ("idle", "leading", "running")
    assert worker.requests > 0
    os.kill(worker.pid, 0)
    (client,) = numbers.clients
    assert (client.pid, client.uid, client.garbage, client.in_flight) == (os.getpid(), os.getuid(), 0, 0)
    assert client.requests > 0
    assert client.bytes >= 256 * 1024
    for histogram in client.stages.values():
        check(histogram)
    assert [info.name for info in numbers.models] == [info.name for info in host.models()]
    assert numbers.page_bytes in (4096, 1 << 21)


def test_what_is_under_way(host: teal.Host, load: Any, tmp_path: Path) -> None:
    model = load("toy_kernels:gate")
    futures = [model.submit(str(tmp_path / "open")) for _ in range(5)]
    while not futures[0].running() or model.statistics().in_flight < 5:
        pass
    numbers = host.statistics()
    assert (numbers.queued, numbers.active) == (4, 5)
    assert numbers.workers[0].state == "running"
    assert numbers.clients[0].in_flight == 5
    (tmp_path / "open").touch()
    for future in futures:
        future.result()
    while host.statistics().active:
        pass
    assert model.statistics().requests == 5


def test_bindings_do_not_grow_with_calls(load: Any, mlp_path: Path, counted: Any) -> None:
    model = load(mlp_path)
    x = model.new_inputs(batch=1)
    call = model.prepare(**x)
    plain = np.zeros((1, 64), np.float32)
    for _ in range(3):
        model(**x)
        call()
        model(plain)
    settled = counted(model).bindings
    for _ in range(100):
        model(**x)
        call()
        model(plain)
        model.submit(**x).result()
    assert counted(model).bindings <= settled + 1


def test_the_empty_histogram() -> None:
    assert Histogram.of([]) == Histogram(0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("value", [0, 1, 15, 16, 17, 100, 999, 12_345, 10**6, 10**9])
def test_percentiles_are_never_too_good(value: int) -> None:
    """A bucket is at most a sixteenth wide, and its upper end is what is shown."""
    floor = value if value < 16 else (value >> (value.bit_length() - 5)) << (value.bit_length() - 5)
    histogram = Histogram.of([(floor, 10)])
    assert value / 1000 <= histogram.p50_us <= (value * 17 / 16 + 1) / 1000
    assert histogram.p50_us == histogram.max_us


def test_percentiles_count() -> None:
    histogram = Histogram.of([(1000, 985), (100, 5), (4096, 9), (1 << 20, 1)])
    assert histogram.count == 1000
    assert histogram.p50_us < 1.1 < 4.0 < histogram.p999_us < 5.0 < 1000 < histogram.max_us
    assert merged([(1, 2), (5, 1)], [], [(5, 3)]) == [(1, 2), (5, 4)]
