"""Tries engines, precisions and threads on a model and keeps what is fastest within an error.

Theory of operation. Every candidate gets a host of its own, so its engine runs in a process of its own: one that
crashes or hangs is a line in the table and ends nothing. A candidate is loaded, answers the samples, and is timed in
prepared calls, for each batch. The answers are compared with those of
the reference, the same file at float32 in the first engine that can run it. Precisions are tried at the most threads
first; those within the error are then tried with fewer. The winner has the lowest geometric mean over the batches of
its time over the best one's. It is written beside the model (`record.py`).
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import teal
from teal._version import __version__
from teal.errors import InvalidArgument, KernelFailed, NotFound, TealError
from teal.tune import inputs, quantise, record
from teal.tune.record import Record

ENGINES = {".onnx": ("onnx", "openvino"), ".pt2": ("torch",)}
LOAD_SECONDS = 300.0
FEWEST_CALLS = 5
LESS_EXACT = 1.05  # what the time of a lower precision is multiplied with where settings are compared
FINALISTS = 2  # settings that are tried with other numbers of threads


@dataclass(frozen=True)
class Candidate:
    """kernel, precision, threads; way: "static" or "dynamic" int8; compiled: by torch's inductor."""

    kernel: str
    precision: str
    threads: int
    way: str = ""
    compiled: bool = False

    @property
    def words(self) -> str:
        way = f" {self.way}" if self.way else " compiled" if self.compiled else ""
        return f"{self.kernel} {self.precision}{way}"


@dataclass(frozen=True)
class Trial:
    """What came of a candidate. us: median by batch; failed: why it has none."""

    candidate: Candidate
    us: Mapping[int, float] = field(default_factory=dict)
    error: float | None = None
    agreement: float | None = None
    failed: str = ""


@dataclass
class Question:
    """What is asked: the model and the limits. extents: of symbolic dimensions, for random inputs; int8: is tried."""

    model: Path
    max_error: float = 2e-2
    inputs: Path | None = None
    calibration: Path | None = None
    engines: Sequence[str] = ()
    batches: Sequence[int] = (1,)
    threads: Sequence[int] = ()
    seconds: float = 0.5
    extents: Mapping[str, int] = field(default_factory=dict)
    int8: bool = True


@dataclass
class Findings:
    """Everything tried, the winner (None: nothing was within the error), and where it was kept."""

    model: Path
    digest: str
    kind: str
    inputs: int
    reference: str
    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    winner: Trial | None = None
    kept: Path | None = None


class Search:
    """One tuning."""

    def __init__(self, question: Question, say: Callable[[str], None] = lambda _: None) -> None:
        self._question, self._say = question, say
        self._model = question.model
        if self._model.suffix not in ENGINES:
            raise InvalidArgument(f"{self._model}: expected a file ending in {' or '.join(ENGINES)}")
        if not self._model.is_file():
            raise NotFound(f"{self._model}: no such file")
        known = ENGINES[self._model.suffix]
        asked = tuple(question.engines) or known
        if wrong := [name for name in asked if name not in known]:
            raise InvalidArgument(f"engine {wrong[0]!r} cannot run {self._model.suffix}, expected {', '.join(known)}")
        self._engines = [name for name in known if name in asked and find_spec(record.KERNELS[name])]
        if not self._engines:
            packages = " or ".join(record.KERNELS[name] for name in asked)
            raise NotFound(f"none of the engines is installed: pip install {packages}")
        most = len(os.sched_getaffinity(0))
        self._threads = sorted(set(question.threads) or {1, most}, reverse=True)
        self._int8: dict[str, Path] = {}
        self._truth: list[list[Any]] = []
        self.findings = Findings(self._model, record.digest_of(self._model), "", 0, "")
        missing = [record.KERNELS[name] for name in asked if name not in self._engines]
        self.findings.notes += [f"{package} is not installed: not tried" for package in missing]

    def run(self, *, keep: bool = True) -> Findings:
        """All of it. Raises InvalidArgument for inputs that do not suit, KernelFailed where no engine runs it."""
        with tempfile.TemporaryDirectory(prefix="teal-tune-") as folder:
            self._samples, self._batched = self._inputs()
            found = self.findings
            found.kind, found.inputs = self._samples.kind, len(self._samples.rows)
            if self._samples.note:
                found.notes.append(self._samples.note)
            for candidate in self._first(Path(folder)):
                self._try(candidate)
            for candidate in self._second():
                self._try(candidate)
            found.winner = self._winner()
            if keep and found.winner is not None:
                found.kept = self._keep(found.winner)
            return found

    # ---- what is tried ---------------------------------------------------------------------------------------------

    def _first(self, folder: Path) -> list[Candidate]:
        """Every engine and precision at the most threads."""
        most = self._threads[0]
        plain = [Candidate(engine, "fp32", most) for engine in self._engines]
        if "openvino" in self._engines:
            plain.append(Candidate("openvino", "bf16", most))
        if "torch" in self._engines:
            plain += [Candidate("torch", "bf16", most)]
            plain += [Candidate("torch", precision, most, compiled=True) for precision in ("fp32", "bf16")]
        if self._model.suffix == ".onnx" and self._question.int8:
            for way in self._int8_ways():
                try:
                    self._say(f"making the {way} int8 form")
                    path = folder / f"{way}.onnx"
                    quantise.make(way, self._model, path, self._calibration() if way == "static" else ())
                    self._int8[way] = path
                    plain += [Candidate(engine, "int8", most, way) for engine in self._engines]
                except KernelFailed as error:
                    self.findings.notes.append(str(error))
        return plain

    def _int8_ways(self) -> list[str]:
        ways = ["static"] if self._question.calibration is not None else []
        if "onnx" not in self._engines or find_spec("onnx") is None:
            self.findings.notes.append("int8 not tried: it needs onnxruntime and onnx (pip install onnxruntime onnx)")
            return []
        if self._question.inputs is not None and quantise.matrix_share(self._model) >= quantise.MATRIX_SHARE:
            ways.append("dynamic")
        if not ways:
            self.findings.notes.append(
                "int8 not tried: it needs real inputs (--calibration FILE.npz, --inputs FILE.npz)"
            )
        return ways

    def _calibration(self) -> list[inputs.Sample]:
        assert self._question.calibration is not None
        return inputs.given(self._question.calibration, self._specs).rows

    def _second(self) -> list[Candidate]:
        """The best ones within the error, with fewer threads."""
        good = sorted(self._good(), key=self._score)
        best = [trial.candidate for trial in good[:FINALISTS]]
        return [replace(each, threads=count) for each in best for count in self._threads[1:]]

    # ---- trying ----------------------------------------------------------------------------------------------------

    def _inputs(self) -> tuple[inputs.Samples, bool]:
        """The samples, from the signature that the first engine says."""
        failures = []
        for engine in self._engines:
            try:
                with teal.Host() as host:
                    model = host.load("m", self._model, kernel=engine, timeout=LOAD_SECONDS, tuned=False)
                    self._specs = model.inputs
                break
            except TealError as error:
                failures.append(f"{engine}: {error}")
        else:
            raise KernelFailed(f"no engine runs {self._model}: {'; '.join(failures)}")
        question = self._question
        if question.inputs is not None:
            samples = inputs.given(question.inputs, self._specs)
        else:
            samples = inputs.random(self._specs, question.extents)
        return samples, inputs.batched(self._specs)

    def _try(self, candidate: Candidate) -> None:
        self._say(f"{candidate.words}, {candidate.threads} threads")
        try:
            trial = self._tried(candidate)
        except TealError as error:
            trial = Trial(candidate, failed=f"{type(error).__name__}: {error}".splitlines()[0][:300])
        self.findings.trials.append(trial)

    def _tried(self, candidate: Candidate) -> Trial:
        source = self._int8[candidate.way] if candidate.way else self._model
        more: dict[str, Any] = {"precision": "bf16"} if candidate.precision == "bf16" else {}
        with teal.Host() as host:
            model = host.load(
                "m",
                source,
                kernel=candidate.kernel,
                **more,
                threads=candidate.threads,
                options=dict(record.COMPILED) if candidate.compiled else None,
                timeout=LOAD_SECONDS,
                tuned=False,
            )
            if note := model.statistics().note:
                raise KernelFailed(note)  # it runs, but not as it was asked to
            answers = [[np.array(out.numpy()) for out in model(dict(sample))] for sample in self._samples.rows]
            us = {batch: self._timed(model, batch) for batch in self._question.batches}
        if not self._truth:
            if candidate.precision != "fp32":
                raise KernelFailed("nothing to compare with: no engine ran the model at float32")
            self._truth, self.findings.reference = answers, candidate.words
        return Trial(candidate, us, relative_error(answers, self._truth), top_one(answers, self._truth))

    def _timed(self, model: Any, batch: int) -> float:
        """Median over prepared calls of the time in the engine, as the worker measures it; microseconds.

        Not of the whole call: waking up a process takes as long as a small model, and is the same for all.
        """
        sample = inputs.of_batch(self._samples.rows[0], batch, self._batched)
        call = model.prepare(dict(sample))
        for _ in range(2):
            call()
        took: list[int] = []
        until = time.perf_counter() + self._question.seconds
        while time.perf_counter() < until or len(took) < FEWEST_CALLS:
            call()
            took.append(call.last_run_ns)
        return max(statistics.median(took), 1) / 1e3

    # ---- choosing --------------------------------------------------------------------------------------------------

    def _good(self) -> list[Trial]:
        limit = self._question.max_error
        return [trial for trial in self.findings.trials if trial.error is not None and trial.error <= limit]

    def _score(self, trial: Trial) -> float:
        """Geometric mean over the batches; microseconds. What is less exact has to be faster by more than noise."""
        mean = math.exp(statistics.fmean(math.log(us) for us in trial.us.values()))
        return mean if trial.candidate.precision == "fp32" else mean * LESS_EXACT

    def _winner(self) -> Trial | None:
        return min(self._good(), key=self._score, default=None)

    def _keep(self, winner: Trial) -> Path:
        """Raises OSError."""
        found, candidate = self.findings, winner.candidate
        path = record.place_for(self._model, found.digest)
        name = digest = None
        if candidate.way:
            made = self._int8[candidate.way]
            digest = record.digest_of(made)
            name = f"{found.digest[:12]}-{digest[:12]}.int8.onnx"
            shutil.copyfile(made, path.parent / f"{name}.partial")
            os.replace(path.parent / f"{name}.partial", path.parent / name)
        kept = Record(
            digest=found.digest,
            machine=record.machine(),
            teal=__version__,
            engine=record.engine(candidate.kernel),
            kernel=candidate.kernel,
            precision=candidate.precision,
            threads=candidate.threads,
            compiled=candidate.compiled,
            file=name,
            file_digest=digest,
            error=winner.error or 0.0,
            agreement=winner.agreement,
            inputs=found.inputs,
            kind=found.kind,
            us=dict(winner.us),
        )
        record.write(kept, path)
        return path


def relative_error(answers: Sequence[Sequence[Any]], truth: Sequence[Sequence[Any]]) -> float:
    """L2 of the difference over L2 of the truth, over all samples, of the output where it is largest.

    Infinite for answers of another shape, or with numbers that are not finite where the truth's are.
    """
    worst = 0.0
    for output in range(len(truth[0])):
        off = size = 0.0
        for answer, right in zip(answers, truth, strict=True):
            a, b = answer[output], right[output]
            if a.shape != b.shape:
                return math.inf
            if not np.issubdtype(b.dtype, np.number):
                continue
            a, b = a.astype(np.float64), b.astype(np.float64)
            finite = np.isfinite(b)
            off += float(np.sum((a[finite] - b[finite]) ** 2))
            size += float(np.sum(b[finite] ** 2))
        far = math.sqrt(off / size) if size else (0.0 if off == 0 else math.inf)
        worst = max(worst, far if math.isfinite(far) else math.inf)
    return worst


def top_one(answers: Sequence[Sequence[Any]], truth: Sequence[Sequence[Any]]) -> float | None:
    """Share of the rows whose largest number is at the same place, in the first output; None where it is no list."""
    same = total = 0
    for answer, right in zip(answers, truth, strict=True):
        a, b = answer[0], right[0]
        if b.ndim != 2 or b.shape[-1] < 2 or a.shape != b.shape or not np.issubdtype(b.dtype, np.floating):
            return None
        same += int(np.sum(a.argmax(-1) == b.argmax(-1)))
        total += b.shape[0]
    return same / total if total else None
