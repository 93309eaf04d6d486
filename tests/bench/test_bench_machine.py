"""What a bench says about the machine."""

from __future__ import annotations

import os
import time

import pytest

from teal.bench import machine


def test_jitter_counts_on_the_core_asked_for_and_goes_back() -> None:
    before = os.sched_getaffinity(0)
    found = machine.jitter(min(before), 0.02)
    assert os.sched_getaffinity(0) == before
    assert found["gaps_over_5_us"] >= found["gaps_over_20_us"] >= found["gaps_over_100_us"] >= 0
    assert found["seconds"] == 0.02


def test_one_core_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    with pytest.raises(RuntimeError, match=r"only core 3; allow it two \(taskset, cpuset\)"):
        machine.two_cores()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 3, 4})
    assert machine.two_cores() == machine.Cores(3, 4)


def test_description_is_plain_data() -> None:
    found = machine.describe(machine.Cores(*(sorted(os.sched_getaffinity(0)) * 2)[:2]), 0.001)
    assert found["cpu"]
    assert found["memory_gib"] > 0
    assert all("lost_ms" in figures for figures in found["jitter"].values())


def test_cpu_time_and_memory_of_a_process() -> None:
    before = machine.process_cpu_ns(os.getpid())
    until = time.thread_time_ns() + 20_000_000
    while time.thread_time_ns() < until:
        pass
    assert machine.process_cpu_ns(os.getpid()) - before >= 10_000_000
    assert machine.process_rss_kib(os.getpid()) > 1000
    gone = 2**22 + 1  # above the largest process number
    assert (machine.process_cpu_ns(gone), machine.process_rss_kib(gone)) == (0, 0)


@pytest.mark.parametrize(("setting", "expected"), [("always [madvise] never", "madvise"), ("tsc", "tsc"), (None, None)])
def test_chosen_setting(setting: str | None, expected: str | None) -> None:
    assert machine.chosen(setting) == expected
