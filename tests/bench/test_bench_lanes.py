"""Lanes: turns, what a contender says when it fails, and that nothing outlives the bench."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench_watch import eventually, members, state

from teal.bench import lanes
from teal.bench.lanes import Entry, Lane, LaneError, Times


@contextmanager
def toy(**config: object) -> Iterator[Lane]:
    with lanes.own_environment().lane("bench_toy", config) as lane:
        yield lane


def test_lane_runs_times_and_answers() -> None:
    with toy() as lane:
        assert (lane.note, lane.versions) == ("a toy", {"toy": "1"})
        times = lanes.take_turns([Entry("row", lane, "inner", n=5, warm=2)], blocks=2)["row"]
        assert [len(block) for block in times.blocks] == [5, 5]
        assert all(ns > 0 for ns in times.all())
        assert [list(block) for block in times.inner] == [[7] * 5] * 2
        assert (lane.answer("a"), lane.answer("inner")) == (b"a", None)


def test_turns_reverse_their_order_and_wake_and_still_each_variant() -> None:
    with toy() as lane:
        lanes.take_turns([Entry(name, lane, name, n=1, warm=0) for name in ("a", "b")], blocks=3)
        built = ["build a", "a", "after", "build b", "b", "after"]
        assert lane.ask("order") == [*built, "b", "after", "a", "after", "a", "after", "b", "after"]


def test_dropped_variant_is_built_again() -> None:
    with toy() as lane:
        lane.answer("a")
        lane.tell(do="drop", variant="a")
        lane.answer("a")
        assert lane.ask("order").count("build a") == 2


def test_flood_counts_calls_and_failures() -> None:
    with toy() as lane:
        lane.tell(do="flood", variant="boom")
        found = lane.tell(do="ebb")
        assert found["calls"] == found["failed"]
        assert found["errors"] == ["ValueError: boom"] * len(found["errors"])


@pytest.mark.parametrize("variant", ["boom", "?"])
def test_failing_call_is_an_error_and_the_lane_goes_on(variant: str) -> None:
    with toy() as lane:
        with pytest.raises(LaneError, match=r"bench_toy: (ValueError: boom|KeyError: .*no variant '\?')"):
            lane.tell(do="run", variant=variant, warm=1, n=1)
        assert lane.answer("a") == b"a"


def test_contender_that_cannot_start_is_quoted() -> None:
    with pytest.raises(LaneError, match="RuntimeError: no licence today"), toy(fails=True):
        pass
    with pytest.raises(LaneError, match=r"(?s)ended, status 1.*No module named no_such_contender"):
        lanes.own_environment().lane("no_such_contender", {})


def test_contender_that_dies_is_reported_with_its_status() -> None:
    with toy() as lane, pytest.raises(LaneError, match="bench_toy: ended, status 3"):
        lane.ask("exit", status=3)


@pytest.mark.parametrize("family", [False, True])
@pytest.mark.parametrize("end", ["close", "kill"])
def test_stopped_server_ends_with_its_lane(family: bool, end: str) -> None:
    with toy(server=True, family=family) as lane:
        server = lane.ask("server")
        assert len(members(server)) == 1 + family
        assert eventually(lambda: all(state(pid) == "T" for pid in members(server)))
        if end == "kill":
            os.kill(lane.ask("pid"), signal.SIGKILL)
            assert eventually(lambda: not members(server))
    assert eventually(lambda: not members(server))


def test_lane_and_server_end_with_a_killed_bench() -> None:
    code = (
        "import sys; from teal.bench import lanes\n"
        "lane = lanes.own_environment().lane('bench_toy', {'server': True})\n"
        "print(lane.ask('pid'), lane.ask('server'), flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as bench:
        assert bench.stdout is not None
        pids = [int(word) for word in bench.stdout.readline().split()]
        assert len(pids) == 2
        bench.kill()
        assert eventually(lambda: not any(map(state, pids)))


def test_litter_is_removed(tmp_path: Path) -> None:
    (tmp_path / "left_file").touch()
    (tmp_path / "left_folder").mkdir()
    (tmp_path / "kept").touch()
    with toy(litter=str(tmp_path / "left_*")):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def blocks(*medians_us: float) -> Times:
    return Times([array("q", [int(us * 1000)]) for us in medians_us])


def test_pairs_cancel_drift() -> None:
    a, b = blocks(11, 21, 31), blocks(10, 20, 30)
    assert lanes.paired_difference(a, b) == lanes.Estimate(1.0, 0.0)
    assert lanes.paired_ratio(blocks(20, 40, 60), b) == lanes.Estimate(2.0, 0.0)


def test_standard_error_ignores_stolen_time() -> None:
    quiet = lanes.estimate([1.0, 1.1, 0.9, 1.0, 1.05, 0.95])
    stolen = lanes.estimate([1.0, 1.1, 0.9, 1.0, 1.05, 9000.0])
    assert stolen.value == pytest.approx(quiet.value, abs=0.1)
    assert stolen.se < 0.1


def test_around_is_call_by_call() -> None:
    times = Times([array("q", [10, 20])], [array("q", [7, 12])])
    assert times.around().all() == [3, 8]


def test_rival_environment_is_found_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "elsewhere" / ".venv"))
    assert lanes.rival_environment(None) is None
    python = tmp_path / ".venv-bench" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    found = lanes.rival_environment(None)
    assert found is not None
    assert found.python == str(python)
    assert lanes.rival_environment(tmp_path / ".venv-bench") == found
    with pytest.raises(LaneError, match="is no virtual environment: it has no bin/python"):
        lanes.rival_environment(tmp_path)
