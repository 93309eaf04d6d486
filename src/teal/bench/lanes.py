"""The bench's side of the lanes: starts contenders, gives them turns, collects their times, ends them.

Theory of operation. `rivals/lane.py` describes the protocol. A `Lane` is one child process. `take_turns` runs one block
of every entry, then the next block of every entry in the opposite order, and so on: a slow drift of the machine then
adds the same to neighbours in a block and cancels in differences and ratios, which are always taken block by block
(`paired_difference`, `paired_ratio`) and reported as the median over blocks with its standard error.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import json
import math
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .energy import Effort, Meter

REPLY_SECONDS = 300.0  # arbitrary: far beyond the longest block, so that a hung contender ends the bench
LOG_LINES = 6  # of a contender that failed, quoted in the error
MEDIAN_SE = 1.2533  # standard error of a median over that of a mean, for a normal distribution
MAD_TO_SIGMA = 1.4826  # median absolute deviation to standard deviation, same


class LaneError(RuntimeError):
    """A contender could not start, failed or hung; the message quotes what it said."""


@dataclass(frozen=True)
class Environment:
    """An interpreter that runs lanes, and the PYTHONPATH where it finds their code."""

    python: str
    path: str

    def lane(self, module: str, config: Mapping[str, Any]) -> Lane:
        """Starts a contender. Raises LaneError."""
        return Lane(module, config, self)


class Lane:
    """One contender: a child process that waits for commands.

    module: what `python -m` runs; environment: with which interpreter. A `folder` in the config becomes its TMPDIR, so
    that what libraries forget there goes with the folder.
    """

    def __init__(self, module: str, config: Mapping[str, Any], environment: Environment) -> None:
        self.name = module.rpartition(".")[2]
        # Held open as long as the lane and closed in close().
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        variables = {"PYTHONPATH": environment.path, "LANE_PARENT": str(os.getpid())}
        if "folder" in config:
            variables["TMPDIR"] = config["folder"]
        self._process = subprocess.Popen(
            [environment.python, "-P", "-m", module, "client", json.dumps(dict(config))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | variables,
            start_new_session=True,  # Ctrl-C reaches the bench alone, which then ends its lanes in order
        )
        self._litter: list[str] = []
        self.served_by: Lane | None = None  # whose processes do this one's work, besides its own
        try:
            hello = self._read()
        except BaseException:
            self.close()
            raise
        self.note = str(hello.get("note", ""))
        self.versions: dict[str, str] = dict(hello.get("versions", {}))
        self._litter = list(hello.get("litter", []))

    def _read(self) -> dict[str, Any]:
        """One reply. Raises LaneError where the child failed, ended or hung."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], REPLY_SECONDS)[0]:
            raise LaneError(f"{self.name}: no answer for {REPLY_SECONDS:.0f} s{self._quote()}")
        line = self._process.stdout.readline()
        if not line:
            raise LaneError(f"{self.name}: ended, status {self._process.wait()}{self._quote()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise LaneError(f"{self.name}: {reply['error']}")
        return reply

    def _quote(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return "".join(f"\n  {line}" for line in lines[-LOG_LINES:])

    @property
    def pids(self) -> tuple[int, ...]:
        """The roots of all process trees that take part in this one's calls."""
        return (self._process.pid, *(self.served_by.pids if self.served_by is not None else ()))

    def tell(self, **command: Any) -> dict[str, Any]:
        """Sends one command and waits for its reply. Raises LaneError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise LaneError(f"{self.name}: ended, status {self._process.wait()}{self._quote()}") from None
        return self._read()

    def ask(self, what: str, **arguments: Any) -> Any:
        """The answer to a question that this contender knows. Raises LaneError."""
        return self.tell(**{"do": "ask", "what": what, "with": arguments})["value"]

    def answer(self, variant: str) -> bytes | None:
        """The bytes with which the variant answers the common input; None where it has no answer to show."""
        text = self.tell(do="answer", variant=variant)["answer"]
        return None if text is None else base64.b64decode(text)

    def close(self) -> None:
        """Ends the child, its server and what they left in the file system. Never raises, may be called twice."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        for pattern in self._litter:
            for left in glob.glob(pattern):
                if Path(left).is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    Path(left).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True)
class Entry:
    """One participant in a round of turns: which variant of which lane, and how many calls a block has."""

    row: str  # the name under which its times are reported
    lane: Lane
    variant: str
    n: int
    warm: int


@dataclass
class Times:
    """The measured calls of one entry, block by block; ns."""

    blocks: list[array[int]] = field(default_factory=list)
    inner: list[array[int]] = field(default_factory=list)  # what of each call was the maths, where the lane knows
    calls: int = 0  # untimed ones included, as in `effort`
    effort: Effort | None = None

    def all(self) -> list[int]:
        return [ns for block in self.blocks for ns in block]

    def medians_us(self) -> list[float]:
        return [statistics.median(block) / 1e3 for block in self.blocks]

    def around(self) -> Times:
        """Each call less what of it was the maths."""
        pairs = zip(self.blocks, self.inner, strict=True)
        blocks = [array("q", [a - b for a, b in zip(outer, inner, strict=True)]) for outer, inner in pairs]
        return Times(blocks, calls=self.calls, effort=self.effort)

    def extend(self, other: Times) -> None:
        self.blocks.extend(other.blocks)
        self.inner.extend(other.inner)
        if other.effort is not None:
            self.spent(other.calls, other.effort)

    def spent(self, calls: int, effort: Effort) -> None:
        self.calls += calls
        self.effort = effort if self.effort is None else self.effort + effort


def decode(text: str) -> array[int]:
    samples = array("q")
    samples.frombytes(base64.b64decode(text))
    return samples


def take_turns(
    entries: Sequence[Entry], blocks: int, progress: Callable[[str], None] | None = None, settle_s: float = 0.0
) -> dict[str, Times]:
    """Runs `blocks` blocks of every entry, in turn, the order reversed every other time. Raises LaneError.

    settle_s: pause before each block. An engine's threads that spin on after its last run would take the cores of
    whoever comes next.
    """
    times = {entry.row: Times() for entry in entries}
    meter = Meter()
    for block in range(blocks):
        if progress is not None:
            progress(f"block {block + 1} of {blocks}")
        for entry in entries if block % 2 == 0 else reversed(entries):
            time.sleep(settle_s)
            meter.start(entry.lane.pids)
            reply = entry.lane.tell(do="run", variant=entry.variant, warm=entry.warm, n=entry.n)
            times[entry.row].spent(entry.warm + entry.n, meter.stop())
            times[entry.row].blocks.append(decode(reply["ns"]))
            if "inner" in reply:
                times[entry.row].inner.append(decode(reply["inner"]))
    return times


@dataclass(frozen=True)
class Estimate:
    """A median over blocks and its standard error, both in the unit of the samples."""

    value: float
    se: float


def estimate(samples: Sequence[float]) -> Estimate:
    """Median and its standard error; the spread is taken from the median deviation, since stolen time has fat tails."""
    middle = statistics.median(samples)
    spread = MAD_TO_SIGMA * statistics.median(abs(sample - middle) for sample in samples)
    return Estimate(middle, MEDIAN_SE * spread / math.sqrt(len(samples)))


def paired_difference(a: Times, b: Times) -> Estimate:
    """Block by block, median(a) - median(b); us."""
    return estimate([x - y for x, y in zip(a.medians_us(), b.medians_us(), strict=True)])


def paired_ratio(a: Times, b: Times) -> Estimate:
    """Block by block, median(a) / median(b)."""
    return estimate([x / y for x, y in zip(a.medians_us(), b.medians_us(), strict=True)])


def own_environment() -> Environment:
    """This interpreter, with this very Teal."""
    return Environment(sys.executable, os.pathsep.join(entry for entry in sys.path if entry))


def rival_environment(venv: Path | None) -> Environment | None:
    """The rivals' environment: the one given, else `.venv-bench` here or beside Teal's own; None if there is none.

    Raises LaneError for one given that is no environment.
    """
    places = [venv] if venv else [Path.cwd() / ".venv-bench", Path(sys.prefix).parent / ".venv-bench"]
    for place in places:
        if (python := place / "bin" / "python").exists():
            return Environment(str(python), str(Path(__file__).parent))
    if venv is not None:
        raise LaneError(f"{venv} is no virtual environment: it has no bin/python; make bench-setup makes .venv-bench")
    return None
