"""`teal bench wave`: what is drawn, what is made of blocks, the pictures, and tiny runs of what can run here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from teal.bench import machine
from teal.bench.lanes import LaneError
from teal.bench.report import Report
from teal.bench.wave import ablation, bench, costs, foundation, latency, loads, nets, plot, rocks, saturation
from teal.bench.wave.mode import Mode, inline, offloaded
from teal.bench.wave.stage import Block, Cores, Plan, Stage, add_seat, loss, middle
from teal.cli.bench import command

TINY = Plan(2, 0.005, 0.005, 50.0, 1.0, 2, 0.01, 2, 0.01, (0.5,), 50, 0.02, 1, 0.01)
LOADS = (loads.rocksdb(), loads.gets(), loads.exponential(), loads.bimodal(), loads.instant())


@pytest.fixture
def stage() -> Iterator[Stage]:
    cores = machine.two_cores()
    with Stage(Report("wave", bench.PROMISES), Cores(cores.client, cores.worker), TINY) as made:
        yield made


def made_up(latency_us: list[float], per_s: float) -> Block:
    """A block of one kind of request that ended at an even pace."""
    n = len(latency_us)
    ended = np.arange(1, n + 1) * (1e9 / per_s)
    return Block((np.array(latency_us) * 1e3).astype(np.uint64), ended.astype(np.uint64), np.zeros(n, np.uint32), 0)


# ---- what is drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_same_seed_draws_the_same_requests(load: loads.Load) -> None:
    first, again, other = (loads.draw(load, 2_000, seed, 10_000) for seed in (1, 1, 2))
    assert (first.at_ns == again.at_ns).all()
    assert (first.kind == again.kind).all()
    assert (first.value == again.value).all()
    assert (first.at_ns != other.at_ns).any()
    assert (np.diff(first.at_ns.astype(np.int64)) >= 0).all()


def test_shares_and_rate_are_those_asked_for() -> None:
    drawn = loads.draw(loads.bimodal(), 200_000, 1, 50_000)
    assert np.mean(drawn.kind == 1) == pytest.approx(loads.LONG_SHARE, rel=0.1)
    assert 200_000 / (drawn.at_ns[-1] / 1e9) == pytest.approx(50_000, rel=0.02)
    assert set(drawn.value[drawn.kind == 1]) == {loads.LONG_US}
    service = loads.draw(loads.exponential(), 200_000, 1).value
    assert service.min() >= 1
    assert service.mean() == pytest.approx(loads.EXPONENTIAL_US, rel=0.03)
    assert not loads.draw(loads.exponential(), 100, 1).at_ns.any()  # at saturation all are due at once


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_a_load_survives_json(load: loads.Load) -> None:
    assert loads.unpacked(json.loads(json.dumps(loads.packed(load)))) == load


# ---- what is made of blocks ------------------------------------------------------------------------------------------


def test_throughput_and_loss() -> None:
    base, ours = made_up([10.0] * 1000, 1000), made_up([10.0] * 1000, 990)
    assert base.rate == pytest.approx(1000, rel=1e-6)
    assert loss([ours] * 3, [base] * 3).value == pytest.approx(1, rel=1e-3)
    assert ablation.ratio([base] * 3, [made_up([10.0] * 1000, 250)] * 3).value == pytest.approx(4, rel=1e-3)


def test_a_stall_and_what_others_took_change_no_loss() -> None:
    base, ours = made_up([10.0] * 1000, 1000), made_up([10.0] * 1000, 980)
    stalled = made_up([10.0] * 1000, 500)  # the machine stopped for as long as the block takes
    found = loss([ours, ours, ours, ours, stalled], [base] * 5)
    assert found.value == pytest.approx(2, rel=1e-3)
    # Half of its time others had the worker's core: of itself it was as fast.
    crowded = dataclasses.replace(stalled, worker_delay_ns=1_000_000_000)
    assert crowded.rate == pytest.approx(base.rate, rel=1e-3)
    assert base.quiet
    assert not crowded.quiet
    assert loss([ours, ours, crowded], [base, base, base]).value == pytest.approx(2, rel=1e-3)
    assert loss([crowded, crowded, ours], [base, base, base]).value == pytest.approx(0, abs=1)  # then all are taken


def test_the_mean_of_the_middle_half_knows_its_error() -> None:
    numbers = np.random.default_rng(1)
    means = [middle(numbers.normal(3, 2, 40).tolist()) for _ in range(400)]
    assert np.mean([each.value for each in means]) == pytest.approx(3, abs=0.1)
    assert np.mean([each.se for each in means]) == pytest.approx(np.std([each.value for each in means]), rel=0.2)


def test_the_tail_of_short_requests() -> None:
    fifo = made_up([10.0] * 1990 + [5_000.0] * 10, 1000)
    shinjuku = made_up([10.0] * 1990 + [100.0] * 10, 1000)
    assert latency.p999_ratio([fifo] * 3, [shinjuku] * 3).value == pytest.approx(50)


def test_each_trick_is_added_and_left_out_once() -> None:
    added, without, base = ablation.modes()
    assert added[0].name == "none"
    assert "tricks=off" in added[0].link
    assert len(added) == len(without) + 1
    for trick in ablation.TRICKS:
        assert sum(f"{trick}=on" in mode.link for mode in added) >= 1
        assert sum(f"{trick}=off" in mode.link for mode in without) == 1
    assert base.inline
    assert base.policy == ablation.POLICY


def test_bars_are_those_of_the_issue() -> None:
    assert {bar for bar in bench.PROMISES if bar.startswith("wave.loss_percent.fifo")} == {
        "wave.loss_percent.fifo.shm",
        "wave.loss_percent.fifo.pcie",
    }
    limits = {bar: promise.limit for bar, promise in bench.PROMISES.items()}
    assert limits["wave.loss_percent.fifo.pcie"] == 1.1
    assert limits["wave.loss_percent.shinjuku.shm"] == 3
    assert limits[ablation.BAR] == 3
    assert limits[latency.BAR] == 10
    assert limits["wave.staged_pick.p50_ns.cold"] == 120
    assert limits["wave.staged_pick.p50_ns.prefetched"] == 30
    assert limits["wave.fallback.gap_ms"] == 51
    assert limits["wave.noagent.cost_ns"] == 20


def test_the_clock_is_taken_off_and_never_below_nothing() -> None:
    assert costs.without_clock([20, 50, 10], 20) == [0, 30, 0]


def test_without_an_older_teal_it_is_said_what_to_do(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(foundation, "NAME", "no-such-environment")
    foundation.measure(stage, None)
    (bar,) = stage.report.bars
    assert (bar.id, bar.value, bar.ok) == (foundation.BAR, None, None)
    assert "make bench-foundation" in bar.note
    assert "--foundation" in bar.note
    with pytest.raises(LaneError, match="make bench-foundation"):
        foundation.measure(stage, tmp_path)


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_pictures_are_xml_and_hold_every_name() -> None:
    data = [("fifo <in-line>", [(0.1, 12.0), (0.9, 4000.0)]), ("shinjuku & co", [(0.1, 10.0), (0.9, 90.0)])]
    for picture in (
        plot.lines("title", "load", "µs", data),
        plot.bars("title", "requests/s", [("none", 10), ("all", 30)]),
    ):
        root = ElementTree.fromstring(picture)
        assert root.tag.endswith("svg")
    words = "".join(ElementTree.fromstring(plot.lines("t", "a", "b", data)).itertext())
    assert "fifo <in-line>" in words
    assert "shinjuku & co" in words
    assert plot.lines("t", "a", "b", data) == plot.lines("t", "a", "b", data)


def test_nothing_is_no_picture() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.lines("t", "a", "b", [("x", [])])
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.bars("t", "a", [("x", 0.0)])


# ---- the command -----------------------------------------------------------------------------------------------------


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for options in (["--parts", "costs,everything"], ["--foundation", str(tmp_path / "none")], ["--unknown"]):
        assert CliRunner().invoke(command, ["wave", *options]).exit_code == 2
    listed = CliRunner().invoke(command, ["wave", "--list"])
    assert listed.output.split() == list(bench.PARTS)
    with pytest.raises(ValueError, match="no such part"):
        bench.measure(parts=["everything"])


def test_a_part_that_fails_leaves_its_bars_unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(stage: Stage) -> None:
        raise LaneError("it broke\nsomewhere")

    monkeypatch.setattr(bench, "QUICK", TINY)
    monkeypatch.setattr(saturation, "measure", fail)
    done = CliRunner().invoke(command, ["wave", "--quick", "--json", "--parts", "saturation"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert [bar["id"] for bar in report["bars"]] == list(bench.PROMISES)
    bars = {bar["id"]: bar for bar in report["bars"]}
    assert bars["wave.loss_percent.fifo.shm"]["ok"] is None
    assert bars["wave.loss_percent.fifo.shm"]["note"] == "saturation failed: it broke"
    assert bars["wave.upgrade.lost"]["note"] == "this part did not run"


# ---- tiny runs -------------------------------------------------------------------------------------------------------


def test_a_pool_without_an_agent_answers_an_open_load(stage: Stage) -> None:
    load = loads.bimodal()
    saturated = stage.block(Mode("plain"), load, 400, 1)
    paced = stage.block(Mode("plain"), load, 100, 2, rate=2_000.0)
    assert saturated.seat == {}
    assert len(saturated.latency_ns) == 400
    assert saturated.rate > 0
    assert (paced.ended_ns >= loads.draw(load, 100, 5, 2_000.0).at_ns).all()
    short, long = paced.of(0), saturated.of(1)
    assert len(short) > 90
    assert short.min() >= loads.SHORT_US * 1e3
    assert (long >= loads.LONG_US * 1e3).all()


@pytest.mark.parametrize(
    "mode",
    [inline("fifo", "fifo"), inline("shinjuku", "shinjuku:quantum=50us"), offloaded("fifo", "fifo", "shm"),
     offloaded("shinjuku", "shinjuku:quantum=50us", "pcie"), offloaded("none", "fifo", "pcie:tricks=off")],
    ids=lambda mode: mode.name,
)  # fmt: skip
def test_a_policy_serves_wherever_it_runs(stage: Stage, mode: Mode) -> None:
    saturated = stage.block(mode, loads.bimodal(), 300, 3)
    paced = stage.block(mode, loads.bimodal(), 100, 4, rate=2_000.0)
    assert len(saturated.latency_ns) == 300
    assert paced.of(0).min() >= loads.SHORT_US * 1e3


def test_one_host_serves_all_that_have_an_agent(stage: Stage) -> None:
    shm, pcie = offloaded("fifo", "fifo", "shm"), offloaded("shinjuku", "shinjuku:quantum=50us", "pcie")
    assert stage.lane(shm) is stage.lane(pcie)
    assert stage.lane(inline("fifo", "fifo")) is not stage.lane(shm)
    found = stage.saturated([shm, pcie], loads.bimodal(), 1)
    add_seat(stage.report, pcie, "stages", found[pcie.name])
    rows = {row.name: row for row in stage.report.rows}
    n = len(found[pcie.name][0].latency_ns)
    assert rows["shinjuku pcie: done"].n == n + 50 or rows["shinjuku pcie: done"].n == n
    assert "of looks found a decision" in rows["shinjuku pcie: decision"].note
    assert rows["shinjuku pcie: staleness"].n > 0


def test_a_long_request_that_began_alone_makes_way_for_what_comes(stage: Stage) -> None:
    short, long = (loads.Kind(name, "spin", 0.5, "fixed", us) for name, us in (("short", 10), ("long", 3_000)))
    load = loads.Load("mixed", loads.SPIN, (short, long), "half of them 300 times as long as the others")
    block = stage.block(offloaded("shinjuku", "shinjuku:quantum=50us", "shm"), load, 150, 5, rate=300.0)
    assert block.seat["preempted"] > 0


@pytest.mark.parametrize("policy", saturation.POLICIES)
def test_off_loaded_is_compared_with_in_line(stage: Stage, policy: str) -> None:
    saturation.compare(stage, policy, saturation.POLICIES[policy], loads.bimodal(), judged=True)
    assert [bar.id for bar in stage.report.bars] == [f"wave.loss_percent.{policy}.{link}" for link in saturation.LINKS]
    assert all(bar.value is not None and "two in-line hosts differ" in bar.note for bar in stage.report.bars)
    assert {row.group for row in stage.report.rows} == {"saturation, bimodal", "stages, bimodal at saturation"}


def test_each_trick_is_measured(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "gets", loads.exponential)
    monkeypatch.setattr(loads, "rocksdb", loads.bimodal)
    monkeypatch.setattr(Stage, "rocks", lambda stage: stage.folder)
    found = ablation.measure(stage)
    assert len(found.added) == len(found.without) + 1
    assert all(step.rate > 0 for step in (*found.added, *found.without))
    (bar,) = stage.report.bars
    assert bar.id == ablation.BAR
    assert bar.value is not None


def test_latency_is_measured_by_load_and_policy(stage: Stage) -> None:
    (curve, *_) = latency.curves(stage, loads.exponential())
    assert curve.name == "fifo in-line"
    assert [share for share, _ in curve.points] == list(TINY.loads)
    assert all(row.n > 0 for row in stage.report.rows)


def test_what_a_link_delays_is_shown_beside_what_was_asked(stage: Stage) -> None:
    costs.delays(stage)
    assert {row.group for row in stage.report.rows} == {"delays, pcie", "delays, cxl"}
    assert all(row.note.startswith("asked: ") for row in stage.report.rows)


def test_what_a_seat_costs_is_measured(stage: Stage) -> None:
    costs.measure(stage)
    rows = {row.name: row for row in stage.report.rows}
    assert set(costs.ROWS) <= set(rows)
    assert all(rows[name].n == TINY.tries for name in costs.ROWS)
    assert {bar.id for bar in stage.report.bars} == set(costs.PROMISES)
    assert all(bar.value is not None for bar in stage.report.bars)


def test_rocksdb_is_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rocksdict", reason="rocksdict is not installed: pip install 'teal-runtime[bench]'")
    monkeypatch.setenv(rocks.FOLDER, str(stage.rocks()))
    rocks.database.cache_clear()
    assert rocks.get(np.int64(rocks.KEYS - 1)) == rocks.LOOKUPS * rocks.VALUE
    assert rocks.scan_at_once(np.int64(rocks.KEYS - 5)) == rocks.ENTRIES * rocks.VALUE
    assert sum(1 for _ in rocks.scan(np.int64(0))) == rocks.ENTRIES // rocks.STEP
    rocks.database().close()
    rocks.database.cache_clear()
    assert (stage.block(Mode("plain"), loads.gets(), 50, 1).latency_ns > 0).all()


def test_the_longer_model_is_one_that_onnxruntime_takes(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    nets.write(tmp_path / "square.onnx")
    session = runtime.InferenceSession(str(tmp_path / "square.onnx"), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.ones((2, nets.WIDTH), np.float32)})
    assert y.shape == (2, nets.WIDTH)
    assert np.isfinite(y).all()
    assert (y > 0).any()
