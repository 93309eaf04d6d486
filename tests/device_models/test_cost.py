"""The cost model: buckets, what is kept, when a device gives way, and the command that measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from teal.kernel import cost, device_call
from teal.kernel.systems.task import task_of


@pytest.mark.parametrize(
    ("batch", "bucket"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (4096, 4096), (4097, 8192)]
)
def test_buckets(batch: int, bucket: int) -> None:
    assert cost.bucket_of(batch) == bucket


def test_the_cheapest_path() -> None:
    costs = cost.Costs({1: {"cpu": 3.0, "apk": 2.0, "pl": 9.0}, 2: {"cpu": 3.0, "apk": 4.0, "pl": 1.0}})
    assert [costs.best(batch) for batch in (1, 2, 3, 1000)] == ["apk", "pl", "pl", "pl"]  # as far as it was measured
    assert costs.breakeven("pl") == 2
    assert costs.breakeven("apk") is None
    assert cost.Costs().best(1) is None


def test_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    task = task_of("mllb")
    assert cost.read("d", task).table == {}
    kept = cost.write("d", task, cost.Costs({1: {"cpu": 1.5, "pl": 2.5}}))
    assert kept.is_relative_to(tmp_path)
    assert cost.read("d", task).table == {1: {"cpu": 1.5, "pl": 2.5}}
    assert cost.read("other", task).table == cost.read("d", task_of("kml")).table == {}
    for nonsense in (
        "",
        "[]",
        '{"layout": 1}',
        '{"layout": 1, "us": {"1": {"pl": 1}}}',
        '{"layout": 1, "us": {"1": {"cpu": "x"}}}',
    ):
        kept.write_text(nonsense)
        assert cost.read("d", task).table == {}


class Slot:
    path, fallback, native = "apk", False, 0

    def run_native(self) -> bool:
        self.native += 1
        return True


class Call:
    path, took, runs, resting = "apk", 0.0, 0, False

    def __call__(self) -> None:
        self.runs += 1

    def rest(self) -> None:
        self.resting = True

    def resume(self) -> None:
        self.resting = False


def test_a_busy_device_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(device_call.time, "monotonic", lambda: now)
    slot, call, said = Slot(), Call(), []
    judged: Any = device_call.Judged(call, slot, 100.0, lambda: said.append(now))  # type: ignore[arg-type]
    for took in (50e-6, 1.0, 10e-6, 10e-6, 1.0):  # one bad run is no reason
        call.took = took
        judged()
        assert not call.resting
    judged()
    assert call.resting
    assert (slot.path, slot.fallback, len(said)) == ("cpu", True, 1)
    judged()
    assert (slot.native, call.runs) == (1, 6)
    now += 1.1
    call.took = 1.0
    judged()
    judged()
    assert call.resting
    now += 1.1
    judged()
    assert slot.native == 2  # it rests longer than the first time
    now += 1.0
    call.took = 1e-6
    judged()
    assert not call.resting
    assert slot.path == "apk"


def test_teal_tune(pocl: str, trained: Any, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from teal.cli import main; main()",
        "tune",
        str(trained("mllb").path),
        "--device",
        pocl,
        "--largest",
        "2",
        "--time",
        "5ms",
    ]
    found = subprocess.run(
        [*command, "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    record = json.loads(found.stdout)
    assert set(record["us"]) == {"1", "2"}
    assert set(record["us"]["1"]) == {"cpu", "pl", "apk"}
    assert Path(record["file"]).exists()
