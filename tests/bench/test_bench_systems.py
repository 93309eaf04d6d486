"""The sweeps of the systems loads: rows of every path, and the batch from which on a device pays."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import teal
from teal.bench import systems
from teal.bench.energy import Effort
from teal.bench.lanes import Times
from teal.kernel.systems import LOADS, file

times = st.floats(0.1, 1e6)


def test_break_even_by_hand() -> None:
    cpu = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0, 16: 16.0}
    assert systems.break_even(cpu, dict.fromkeys(cpu, 4.0)) == 4
    assert systems.break_even(cpu, dict.fromkeys(cpu, 3.0)) == 3
    assert systems.break_even(cpu, dict.fromkeys(cpu, 0.5)) == 1
    assert systems.break_even(cpu, dict.fromkeys(cpu, 99.0)) is None
    assert systems.break_even(cpu, {1: 0.5, 2: 9.0, 4: 1.0, 8: 1.0, 16: 1.0}) == 3  # 2 loses: 1 does not count
    assert systems.break_even(cpu, {32: 1.0}) is None
    assert systems.break_even({}, {}) is None


@given(st.dictionaries(st.integers(1, 4096), st.tuples(times, times), min_size=1))
def test_break_even_is_where_it_says(found: dict[int, tuple[float, float]]) -> None:
    cpu = {batch: a for batch, (a, _) in found.items()}
    other = {batch: b for batch, (_, b) in found.items()}
    batch = systems.break_even(cpu, other)
    losing = [b for b in found if other[b] > cpu[b]]
    if batch is None:
        assert max(found) in losing
    else:
        assert all(b < batch for b in losing)
        assert batch == min(found) if not losing else max(losing) < batch <= min(b for b in found if b > max(losing))


@given(st.floats(0.01, 10), st.floats(1, 1000))
def test_break_even_of_straight_lines(per_item: float, constant: float) -> None:
    """A device that takes a constant time breaks even where the CPU's line reaches it, wherever the grid lies."""
    cpu = {1 << power: per_item * (1 << power) for power in range(18)}
    found = systems.break_even(cpu, dict.fromkeys(cpu, constant))
    exact = constant / per_item
    if exact > 1 << 17:
        assert found is None
    else:
        assert found == pytest.approx(max(1, np.ceil(exact - 1e-6)), abs=1)


def test_sweep_takes_turns_and_names_rows() -> None:
    asked: list[tuple[str, int]] = []

    def path(name: str, ns: int) -> systems.Sweep:
        def run(load: str, model: bytes, x: systems.Array, n: int) -> Times:
            assert file.view(model).load.name == load
            asked.append((name, len(x)))
            return Times([array("q", [ns * len(x)] * n)], calls=2 * n, effort=Effort(n / 100, None))

        return run

    rows = systems.sweep("mllb", {"cpu": path("cpu", 1000), "apk": path("apk", 500)}, batches=(1, 32))
    assert asked == [("cpu", 1), ("apk", 1), ("cpu", 32), ("apk", 32)]
    assert [row.name for row in rows] == ["mllb cpu 1", "mllb apk 1", "mllb cpu 32", "mllb apk 32"]
    assert rows[2].note == "1 M items/s"
    assert [row.cpu_s_per_1000 for row in rows] == [pytest.approx(5)] * 4
    assert all(row.j_per_1000 is None for row in rows)
    assert systems.medians(rows, "mllb", "apk") == {1: 0.5, 32: 16.0}
    assert systems.medians(rows, "kml", "apk") == {}
    assert systems.break_even(systems.medians(rows, "mllb", "cpu"), systems.medians(rows, "mllb", "apk")) == 1


@pytest.mark.parametrize("load", LOADS)
def test_both_paths_measure(host: teal.Host, load: str) -> None:
    paths = {"cpu": systems.kernel_path, "call": systems.call_path(host)}
    rows = systems.sweep(load, paths, batches=(1, 3), seconds=0.001)
    assert len(rows) == 4
    assert all(row.p50_us is not None and row.p50_us > 0 and row.group == "systems" for row in rows)
    assert all(row.cpu_s_per_1000 is not None for row in rows)
    assert not host.models()


def test_every_load_has_batches() -> None:
    assert set(systems.BATCHES) == set(systems.PUBLISHED_CPU_US) == set(LOADS)
    assert all(list(batches) == sorted(set(batches)) for batches in systems.BATCHES.values())
    assert all(5 <= systems.repeats(load, batch, 0.1) <= 10_000 for load in LOADS for batch in (1, 65_536))
