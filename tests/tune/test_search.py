"""Tuning a small model: what is tried, what wins, what is kept and what a load makes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import teal
from teal.cli.tune import command
from teal.tune import record, search
from teal.tune.search import Candidate, Question, Search, Trial

pytest.importorskip("onnxruntime", reason="needs onnxruntime")

OnnxModel = Callable[..., Path]
MATRIX = """g (float[batch, 64] x) => (float[batch, 16] y) <float[64, 16] w = {%s}> { y = MatMul(x, w) }"""


@pytest.fixture
def matrix(onnx_model: OnnxModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """y = x @ w, w of a normal distribution."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    weights = np.random.default_rng(3).standard_normal(64 * 16)
    return onnx_model(MATRIX % ", ".join(f"{value:.5f}" for value in weights))


def tuned(path: Path, *arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(command, [str(path), "--time", "5ms", "--engines", "onnx", "--json", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_winner_is_kept_and_used(matrix: Path) -> None:
    found = tuned(matrix, "--threads", "1")
    (winner,) = [trial for trial in found["trials"] if trial["winner"]]  # type: ignore[attr-defined]
    assert (winner["kernel"], winner["precision"], winner["threads"]) == ("onnx", "fp32", 1)
    assert winner["error"] == 0
    assert winner["us"]["1"] > 0
    assert (found["kind"], found["reference"]) == ("random", "onnx fp32")
    assert found["file"] == str(record.beside(matrix))
    assert any("int8 not tried: it needs real inputs" in note for note in found["notes"])  # type: ignore[attr-defined]
    with teal.Host() as host:
        assert host.load("a", matrix).statistics().note == "tuned: onnx fp32, 1 thread"
        assert host.load("b", matrix, tuned=False).statistics().note == ""
        assert host.load("c", matrix, threads=2).statistics().note == ""
        assert host.load("d", matrix, tuned=True).statistics().note.startswith("tuned: ")
        with pytest.raises(teal.InvalidArgument, match="tuned=True chooses threads itself"):
            host.load("e", matrix, threads=1, tuned=True)


def test_int8_is_another_file_and_must_stay_what_it_was(matrix: Path) -> None:
    pytest.importorskip("onnx", reason="needs onnx")
    x = np.random.default_rng(4).standard_normal((20, 64), dtype=np.float32)
    np.savez(matrix.with_name("samples.npz"), x=x)
    samples = str(matrix.with_name("samples.npz"))
    question = Question(matrix, max_error=0.5, inputs=Path(samples), calibration=Path(samples), engines=["onnx"])
    question.threads, question.seconds = [1], 0.005
    hunt = Search(question)
    found = hunt.run(keep=False)
    int8 = [trial for trial in found.trials if trial.candidate.precision == "int8"]
    assert {trial.candidate.way for trial in int8} == {"static", "dynamic"}
    assert all(trial.error is not None and 0 < trial.error < 0.1 for trial in int8)
    assert all(trial.agreement is not None and trial.agreement > 0.5 for trial in int8)

    path = matrix.with_name("int8.onnx")
    path.write_bytes(matrix.read_bytes())
    hunt._int8["static"] = path
    kept = hunt._keep(next(trial for trial in int8 if trial.candidate.way == "static"))
    (file,) = matrix.parent.glob("*.int8.onnx")
    with teal.Host() as host:
        model = host.load("a", matrix)
        assert model.statistics().note == "tuned: onnx int8, 1 thread"
        assert model.info.source == str(file)
        digest = record.digest_of(matrix)
        model = host.load("b", matrix, digest=digest)
        assert "not the file that digest= names" in model.statistics().note
        assert model.info.digest == digest
        file.write_bytes(file.read_bytes() + b"\x00")
        with pytest.raises(teal.InvalidArgument, match="is not the file that was tuned"):
            host.load("c", matrix)
        file.unlink()
        assert "cannot be read" in host.load("d", matrix).statistics().note
        kept.unlink()
        assert host.load("e", matrix).statistics().note == ""


def test_a_record_that_does_not_suit_is_said_and_not_used(matrix: Path) -> None:
    record.beside(matrix).write_text("{}")
    record.beside(matrix).chmod(0o600)
    with teal.Host() as host:
        model = host.load("a", matrix)
        assert model.statistics().note.startswith("the tuned record was not used: ")
        assert "damaged" in model.statistics().note
        with pytest.raises(teal.NotFound, match="damaged"):
            host.load("b", matrix, tuned=True)
        record.beside(matrix).unlink()
        with pytest.raises(teal.NotFound, match="no tuned record"):
            host.load("c", matrix, tuned=True)
        with pytest.raises(teal.InvalidArgument, match="can be tuned"):
            host.load("d", "builtin:sum", tuned=True)


def test_an_engine_that_crashes_ends_nothing(matrix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Search, "_first", lambda self, _: [
        Candidate("onnx", "fp32", 1), Candidate("no such kernel", "fp32", 1)
    ])  # fmt: skip
    question = Question(matrix, engines=["onnx"], threads=[1], seconds=0.005)
    found = Search(question).run(keep=False)
    assert [bool(trial.failed) for trial in found.trials] == [False, True]
    assert found.winner is found.trials[0]
    assert found.kept is None
    assert not record.beside(matrix).exists()


def test_a_model_no_engine_can_run(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    done = CliRunner().invoke(command, [str(path), "--engines", "onnx", "--json"])
    assert isinstance(done.exception, teal.KernelFailed)
    assert "no engine runs" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["model.onnx", "--device", "opencl"], "--device does not go with a model"),
        (["load.safetensors", "--max-error", "0.1"], "--max-error does not go with a systems load"),
        (["model.onnx", "--batches", "one"], "--batches: 'one'"),
        (["model.onnx", "--max-error", "2"], "2.0 is not in the range"),
    ],
)
def test_options_that_make_no_sense(arguments: list[str], why: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert why in done.stderr


def test_errors_count_over_all_samples() -> None:
    truth = [[np.array([3.0, 4.0])], [np.array([0.0, 0.0])]]
    assert search.relative_error(truth, truth) == 0
    off = [[np.array([3.0, 4.5])], [np.array([0.0, 0.0])]]
    assert search.relative_error(off, truth) == pytest.approx(0.1)
    assert search.relative_error([[np.array([3.0, np.nan])], truth[1]], truth) == math.inf
    assert search.relative_error([[np.zeros(3)], truth[1]], truth) == math.inf


def test_agreement_is_that_of_the_largest() -> None:
    truth = [[np.array([[0.1, 0.9]])], [np.array([[0.8, 0.2]])]]
    assert search.top_one(truth, truth) == 1
    assert search.top_one([truth[0], truth[0]], truth) == 0.5
    assert search.top_one([[np.zeros(3)]], [[np.zeros(3)]]) is None


def test_the_winner_is_fastest_over_all_batches(matrix: Path) -> None:
    hunt = Search(Question(matrix, engines=["onnx"], threads=[1]))
    one, other = Candidate("onnx", "fp32", 1), Candidate("onnx", "fp32", 2)
    hunt.findings.trials = [
        Trial(one, {1: 1.0, 8: 100.0}, 0.0),
        Trial(other, {1: 2.0, 8: 20.0}, 0.0),
        Trial(replace_threads(other), {1: 0.1, 8: 0.1}, 0.5),
    ]
    winner = hunt._winner()
    assert winner is not None
    assert winner.candidate is other
    hunt.findings.trials = [
        Trial(one, {1: 1.0}, 0.0),
        Trial(Candidate("onnx", "bf16", 1), {1: 0.99}, 0.001),
    ]
    assert hunt._winner() is hunt.findings.trials[0]  # no gain, so nothing is given up for it


def replace_threads(candidate: Candidate) -> Candidate:
    return Candidate(candidate.kernel, candidate.precision, 4)
