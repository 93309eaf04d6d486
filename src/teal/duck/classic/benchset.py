"""The benchmark set: small programs that load one thing each, judged several times; how long, and how the times spread.

Theory of operation: the programs are DuckInfo programs in C (examples/duck/benchset), compiled here with `teal duck
cc`. Each reads from stdin how much it shall do, and answers with a checksum, which must be the same in every run: a
program that the compiler emptied, or that did something else, is found out. The rows are those of the reference's own
set: loops, memory-bound work that fits the first, second and third cache and none, sort, radix sort, cache flushes, and
100,000 exceptions, which here are page faults, as a sandboxed program may have no others and live.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import teal
from teal.duck import cc
from teal.duck.classic.client import Client, Judged
from teal.errors import KernelFailed, NotFound

_MEMORY = 16 << 20  # of a program beside what its work takes
_TIME = "60s"


@dataclass(frozen=True, slots=True)
class Load:
    """A row: a program, what it shall do (two numbers on stdin: size, and rounds that `scale` multiplies), bytes
    of memory that a round takes."""

    name: str
    program: str
    size: int
    rounds: int
    per_round: int = 0


LOADS = (
    Load("loops", "loops", 0, 50_000_000),
    Load("memory 16 KiB", "memory", 16 << 10, 10_000_000),
    Load("memory 256 KiB", "memory", 256 << 10, 10_000_000),
    Load("memory 4 MiB", "memory", 4 << 20, 5_000_000),
    Load("memory 64 MiB", "memory", 64 << 20, 2_000_000),
    Load("sort", "sort", 0, 500_000, 8),
    Load("radix sort", "radix", 0, 4_000_000, 8),
    Load("cache flush", "flush", 4 << 20, 20),
    Load("page faults", "faults", 0, 100_000, 4096),
)


@dataclass(frozen=True, slots=True)
class Row:
    """CPU times of the record in milliseconds; wall: its real time."""

    name: str
    runs: int
    mean_ms: float
    stddev_ms: float
    stddev_percent: float
    min_ms: float
    max_ms: float
    wall_mean_ms: float
    memory_kb: int
    answer: str


def sources(folder: str | None = None) -> Path:
    """Where the programs are. Raises NotFound."""
    found = Path(folder) if folder else Path(teal.__file__).parents[2] / "examples" / "duck" / "benchset"
    if not (found / "loops.c").exists():
        raise NotFound(f"{found}: the programs of the benchmark set are not there; give --programs DIR of a checkout")
    return found


def measure(
    client: Client,
    *,
    repeats: int = 10,
    only: Sequence[str] = (),
    scale: float = 1.0,
    folder: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Judges each row ``repeats`` times. Raises NotFound, InvalidArgument (no compiler), KernelFailed (a run)."""
    chosen = [load for load in LOADS if not only or load.name.startswith(tuple(only))]
    if not chosen:
        raise NotFound(f"no row begins with {' or '.join(only)}; there are {', '.join(load.name for load in LOADS)}")
    here = sources(folder)
    with tempfile.TemporaryDirectory(prefix="teal-benchset-") as made:
        programs: dict[str, bytes] = {}
        for name in dict.fromkeys(load.program for load in chosen):
            target = Path(made) / f"{name}.elf"
            cc.compile_program(here / f"{name}.c", target, abi="duckinfo")
            programs[name] = target.read_bytes()
    rows = []
    for load in chosen:
        report(load.name)
        rows.append(_row(load, [_run(client, programs[load.program], load, scale) for _ in range(repeats)]))
    return rows


def _run(client: Client, program: bytes, load: Load, scale: float) -> Judged:
    rounds = max(1, round(load.rounds * scale))
    memory = _MEMORY + load.size + load.per_round * rounds
    judged = client.judge(program, b"%d %d\n" % (load.size, rounds), time=_TIME, memory=memory, stdout=4096)
    record = judged.record
    if record["status"] != "Run Finished" or record["return-code"] != 0:
        why = record.get("reason") or f"trap {record['trap-num']}, exit status {record['return-code']}"
        raise KernelFailed(f"the row {load.name} did not finish well: {record['status']}, {why}")
    return judged


def _row(load: Load, runs: list[Judged]) -> Row:
    answers = {judged.stdout for judged in runs}
    if len(answers) != 1 or not runs[0].stdout.strip():
        raise KernelFailed(f"{load.name}: answers differ between runs: {sorted(answers)[:3]}")
    times = [float(judged.record["time-ns"]) / 1e6 for judged in runs]
    mean = statistics.fmean(times)
    spread = statistics.stdev(times) if len(times) > 1 else 0.0
    return Row(
        load.name,
        len(runs),
        mean,
        spread,
        100 * spread / mean if mean else 0.0,
        min(times),
        max(times),
        statistics.fmean(float(judged.record["time-ns-real"]) / 1e6 for judged in runs),
        max(int(judged.record["memory-kb"]) for judged in runs),
        runs[0].stdout.decode("ascii", "replace").strip(),
    )
