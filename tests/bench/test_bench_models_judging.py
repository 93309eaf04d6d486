"""`teal bench models`: judgements on times made up for them, the update counter, and contests that are kept."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import teal
from teal.bench.lanes import Times
from teal.bench.models import client, judging, kept, resident, standard, updating
from teal.bench.models.entrant import Contest, Tuned
from teal.bench.models.promises import PROMISES
from teal.bench.models.stage import FULL, QUICK
from teal.bench.report import Report
from teal.bench.rivals import zoo
from teal.cli.bench import command

GOOD = Tuned("tuned: openvino bf16, 2 threads", 1e-2, None, 200)


def made_up(us: float) -> Times:
    return Times([array("q", [round(us * 1000)] * 5)] * 3)


def contest(name: str, times: dict[str, float], tuned: Tuned | None = GOOD, batch: int = 1) -> Contest:
    return Contest(zoo.ZOO[name], batch, {row: made_up(us) for row, us in times.items()}, tuned)


def judged(*contests: Contest) -> dict[str, tuple[float | None, bool | None, str]]:
    report = Report("models", PROMISES)
    judging.judge(report, contests)
    report.judge_rest("left")
    return {bar.id: (bar.value, bar.ok, bar.note) for bar in report.bars}


def test_the_mean_over_models_is_geometric() -> None:
    found = judged(
        contest("resnet50", {standard.STANDARD: 80_000, resident.TUNED: 4_000, "PyTorch gRPC, raw bytes": 8_000}),
        contest("deit_s", {standard.STANDARD: 40_000, resident.TUNED: 8_000}),
        contest("vit_b16", {standard.STANDARD: 1_000_000, resident.TUNED: 1}, batch=8),
    )
    value, ok, note = found["models.b1.geomean_vs_standard"]
    assert value == pytest.approx(math.sqrt(20 * 5))
    assert ok is True
    assert "resnet50 20.0, deit_s 5.0" in note
    assert "PyTorch gRPC, raw bytes 2.00" in note
    assert found["models.start.warm_over_cold"] == (None, None, "left")


@pytest.mark.parametrize(
    ("tuned", "said"),
    [
        (None, "not tuned"),
        (Tuned("tuned", 0.03, None, 200), "error 3.0e-02"),
        (Tuned("tuned", 0.01, 0.98, 200), "top-1 98.0%"),
        (Tuned("tuned"), "error not measured"),
    ],
)
def test_a_tuned_model_that_is_not_right_does_not_count(tuned: Tuned | None, said: str) -> None:
    times = {standard.STANDARD: 80_000.0, resident.TUNED: 4_000.0}
    value, ok, note = judged(contest("resnet50", times, tuned))["models.b1.geomean_vs_standard"]
    assert (value, ok) == (None, None)
    assert said in note


def test_the_worst_model_against_its_best_engine_decides() -> None:
    found = judged(
        contest(
            "resnet50",
            {
                "in-process onnxruntime fp32": 1000,
                "in-process OpenVINO fp32": 800,
                "in-process OpenVINO bf16": 400,
                resident.in_place("onnx"): 1500,  # not the best engine: does not count
                resident.in_place("openvino"): 814,
                resident.in_place("bf16"): 426,
            },
        )
    )
    value, ok, note = found["models.b1.worst_vs_best_inprocess"]
    assert value == pytest.approx(420 / 400)
    assert ok is False
    assert note.startswith("resnet50 OpenVINO bf16 is worst")
    assert "resnet50 OpenVINO fp32 1.010" in note


def test_the_small_model_is_judged_by_itself() -> None:
    times = {standard.STANDARD: 900.0, resident.TUNED: 8.0, resident.written("onnx"): 7.5}
    value, ok, _ = judged(contest("mlp", times))["models.small.vs_standard"]
    assert value == pytest.approx(120)
    assert ok is True


def test_nearest_others_agree() -> None:
    truth = np.eye(4)[[0, 0, 1, 1]]
    assert client.nearest_agree(truth, truth) == 1
    answers = truth.copy()
    answers[0] = [0, 1, 0, 0]
    assert client.nearest_agree(answers, truth) < 1


def test_updates_lose_and_mix_nothing(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    paths = [tmp_path / f"{number}.onnx" for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        path.write_bytes(updating.adder(number))
    versions = iter(paths * 10)
    with teal.Host() as host:
        host.load("updated", next(versions), threads=1)
        asked = []

        def replace() -> None:
            if len(asked) < 40:
                asked.append(1)
                if len(asked) % 10 == 0:
                    host.load("updated", next(versions), threads=1)

        counts = updating.flooded(host, "updated", 0.05, replace)
        while len(asked) < 40:
            more = updating.flooded(host, "updated", 0.05, replace)
            counts = {key: counts[key] + more[key] for key in counts}
    assert counts["answers"] > 40
    assert (counts["failed"], counts["mixed"]) == (0, 0)


def test_an_answer_of_two_versions_is_seen() -> None:
    class Mixing:
        def submit(self, x: np.ndarray) -> object:  # type: ignore[type-arg]
            y = x + 1
            y[5] = 2
            return SimpleNamespace(result=lambda: [SimpleNamespace(numpy=lambda: y)])

    counts = updating.flooded(SimpleNamespace(model=lambda _: Mixing()), "updated", 0.01, lambda: None)
    assert counts["mixed"] == counts["answers"] > 0


def test_a_contest_is_kept_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage() -> SimpleNamespace:
        report = Report("models", PROMISES)
        return SimpleNamespace(report=report, cache=tmp_path, rivals=None, cores=2, plan=QUICK, say=lambda _: None)

    first = stage()
    held = contest("resnet50", {standard.STANDARD: 80_000, resident.TUNED: 4_000})
    first.report.add_times(standard.STANDARD, held.group, held.times[standard.STANDARD], "a note")
    key = kept.key(first, held.entry, 1, compiled=True)  # type: ignore[arg-type]
    kept.write(first, key, held, first.report.rows)  # type: ignore[arg-type]
    second = stage()
    found = kept.read(second, key)  # type: ignore[arg-type]
    assert found is not None
    assert found.times == held.times
    assert found.tuned == GOOD
    (row,) = second.report.rows
    assert row.p50_us == 80_000
    assert row.note.startswith("a note; measured 0 min before")
    assert kept.read(second, key | {"batch": 2}) is None  # type: ignore[arg-type]
    monkeypatch.setattr(kept, "HOURS", -1)
    assert kept.read(second, key) is None  # type: ignore[arg-type]


def test_the_command_lists_and_refuses() -> None:
    done = CliRunner().invoke(command, ["models", "--list"])
    assert done.exit_code == 0
    assert "TinyLlama-1.1B-shaped (128 tokens): 2 of 22 layers" in done.stdout
    done = CliRunner().invoke(command, ["models", "--models", "resnet51"])
    assert done.exit_code == 2
    assert "'resnet51', expected some of mlp, " in done.stderr


def test_slow_contests_have_fewer_blocks() -> None:
    """Of a model whose calls take seconds (large batches, JSON) one call a block and three blocks; of others all."""
    assert [FULL.calls(seconds) for seconds in (1e-5, 0.01, 0.5, 2.0)] == [300, 30, 2, 1]
    assert FULL.blocks_of([0.001, 0.05, 0.2]) == FULL.blocks
    assert FULL.blocks_of([5.0, 3.0]) == 9
    assert FULL.blocks_of([20.0, 30.0]) == 3
