"""What the parts stand on: a driver for each kind of host, and blocks of requests in turn.

All modes that are compared get the same drawn requests in a block, in turn, in the opposite order every other time;
what is compared is compared within a block, and reported as the median over blocks with its standard error
(`lanes.estimate`). One host serves all modes that have an agent, one each those that have none; all stay until the
bench ends, and one that is not in turn sleeps.
"""

from __future__ import annotations

import base64
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from teal.bench import models
from teal.bench.lanes import Environment, Estimate, Lane, LaneError, own_environment
from teal.bench.report import Report, Row
from teal.host.agent_view import STAGES, SeatStatistics, seat_of
from teal.host.records import Histogram, merged

from . import loads, nets, rocks
from .mode import Mode

FAILED = np.iinfo(np.uint64).max
SEED = 1


@dataclass(frozen=True)
class Plan:
    """How much is measured. Requests are per block; `seconds` is about the length of a block at a rate."""

    blocks: int
    saturated_seconds: float
    loss_block_seconds: float  # blocks of what is judged by its loss …
    loss_error: float  # … which go on until it is known to so many points, …
    loss_seconds: float  # … or so long for each policy
    others: int  # blocks where nothing is judged
    seconds: float
    pairs: int  # of blocks for the tail of short requests
    curve_seconds: float
    loads: tuple[float, ...]  # share of what the in-line policy serves at saturation
    tries: int  # of each small cost
    events_seconds: float
    deaths: int
    jitter_seconds: float


FULL = Plan(14, 0.4, 0.1, 0.4, 110.0, 4, 2.0, 6, 0.5, (0.2, 0.4, 0.6, 0.7, 0.8, 0.9), 20_000, 1.0, 5, 1.0)
QUICK = Plan(4, 0.12, 0.1, 0.8, 20.0, 2, 0.5, 2, 0.2, (0.3, 0.6, 0.8), 2_000, 0.3, 2, 0.3)


@dataclass(frozen=True)
class Cores:
    """host: the worker's; agent: that of the agent and of the load."""

    host: int
    agent: int


@dataclass(frozen=True)
class Block:
    """What came of one block: by request latency and end in ns (FAILED), and the number of its kind."""

    latency_ns: NDArray[np.uint64]
    ended_ns: NDArray[np.uint64]
    kind: NDArray[np.uint32]
    most_late_ns: int
    seat: Mapping[str, Any] = field(default_factory=dict)  # what the host counted there; empty without an agent
    worker_delay_ns: int = 0  # for which the worker stood ready, and others had its core
    load_delay_ns: int = 0  # … and the load, with the agent if any

    def of(self, kind: int) -> NDArray[np.uint64]:
        """Latencies of one kind."""
        found: NDArray[np.uint64] = self.latency_ns[self.kind == kind]
        return found

    @property
    def lasted_ns(self) -> float:
        """From the first arrival to the last end, less what others took of the worker's core."""
        lasted = float(self.ended_ns.max())
        return max(1.0, lasted - min(self.worker_delay_ns, lasted / 2))

    @property
    def rate(self) -> float:
        """Requests a second: the same work in every mode, whatever its order."""
        return float(len(self.ended_ns) / self.lasted_ns * 1e9)

    @property
    def quiet(self) -> bool:
        """Did others leave both cores alone?"""
        return max(self.worker_delay_ns, self.load_delay_ns) <= DISTURBED * self.lasted_ns


@dataclass
class Stage:
    """A context manager: leaves no process and no file behind."""

    report: Report
    cores: Cores
    plan: Plan
    progress: Callable[[str], None] | None = None
    environment: Environment = field(default_factory=own_environment)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="teal-bench-")))
            self._stack = stack.pop_all()
        self._data: Path | None = None
        self._lanes: dict[str, Lane] = {}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def nets(self) -> tuple[Path, Path]:
        """The two ONNX models, a short and a long one. Raises LaneError without onnxruntime."""
        if find_spec("onnxruntime") is None:
            raise LaneError("onnxruntime is not installed: pip install 'teal-runtime[onnx]'")
        path = self.folder / "square.onnx"
        if not path.exists():
            nets.write(path)
        return models.mlp(), path

    def say(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what)

    def rocks(self) -> Path:
        """The folder of RocksDB's data, made at the first call. Raises LaneError without rocksdict."""
        if self._data is None:
            self.say("making RocksDB's data")
            try:
                rocks.fill(self.folder / "rocks")
            except ImportError:
                raise LaneError("rocksdict is not installed: pip install 'teal-runtime[bench]'") from None
            self._data = self.folder / "rocks"
        return self._data

    def lane(self, mode: Mode) -> Lane:
        """The host that serves this mode, and its load; started at the first call. Raises LaneError."""
        if mode.host not in self._lanes:
            self.say(f"starting a host for {mode.host}")
            config = {
                "inline": mode.policy if mode.inline else "",
                "worker_core": self.cores.host,
                "own_core": self.cores.agent,
                "rocks": str(self._data or self.folder),
            }
            self._lanes[mode.host] = self._stack.enter_context(self.environment.lane("teal.bench.wave.driver", config))
        return self._lanes[mode.host]

    def block(
        self, mode: Mode, load: loads.Load, n: int, number: int, *, rate: float | None = None, warm: int = 50
    ) -> Block:
        """One block; `number` decides what is drawn, `warm` requests before it do not count.

        Raises LaneError, also when a request failed.
        """
        seed = SEED + 2 * number
        found: Mapping[str, Any] = self.lane(mode).ask(
            "run", mode=asdict(mode), load=loads.packed(load), n=n, seed=seed, rate=rate,
            most_out=MOST_OUT if rate is None else 1 << 16, warm=warm,
        )  # fmt: skip
        if found["failed"]:
            raise LaneError(f"{found['failed']} of {n} requests failed, the first one: {found['failure']}")
        latency, ended = (np.frombuffer(base64.b64decode(found[key]), np.uint64) for key in ("latency_ns", "ended_ns"))
        kind = loads.draw(load, n, seed, rate).kind
        delays = (int(found[name]) for name in ("worker_delay_ns", "load_delay_ns"))
        return Block(latency, ended, kind, int(found["most_late_ns"]), found["seat"], *delays)

    def requests(self, load: loads.Load) -> int:
        """How many keep a worker busy for about `saturated_seconds`."""
        return max(200, int(self.plan.saturated_seconds * 1e6 / max(load.mean_us, LEAST_US)))

    def compared(self, base: Mode, modes: Sequence[Mode], load: loads.Load) -> dict[str, list[Block]]:
        """Short blocks of all modes in turn, as saturated(), until what each loses against the base is known to
        `loss_error` points, or `loss_seconds` are over."""
        n = max(200, int(self.plan.loss_block_seconds * 1e6 / max(load.mean_us, LEAST_US)))
        every = [base, *modes]
        found: dict[str, list[Block]] = {mode.name: [] for mode in every}
        until, number = time.monotonic() + self.plan.loss_seconds, 0
        while number < LEAST_PAIRS or time.monotonic() < until:
            errors = [loss(found[mode.name], found[base.name]).se for mode in modes] if number >= LEAST_PAIRS else []
            if errors and max(errors) <= self.plan.loss_error:
                break
            self.say(f"{load.name}, pair {number + 1}" + (f", ± {max(errors):.2f} points" if errors else ""))
            for mode in every if number % 2 == 0 else reversed(every):
                found[mode.name].append(self.block(mode, load, n, number, warm=n if number == 0 else 50))
            number += 1
        return found

    def saturated(self, modes: Sequence[Mode], load: loads.Load, blocks: int) -> dict[str, list[Block]]:
        """Blocks of all modes in turn, with always as many requests out as MOST_OUT; a quarter of a block before."""
        n = self.requests(load)
        found: dict[str, list[Block]] = {mode.name: [] for mode in modes}
        for number in range(blocks):
            self.say(f"{load.name}, block {number + 1} of {blocks}")
            for mode in modes if number % 2 == 0 else reversed(modes):
                warm = n // 4 if number == 0 else 50
                found[mode.name].append(self.block(mode, load, n, number, warm=warm))
        return found


MOST_OUT = 64  # at saturation: always as many
LEAST_PAIRS = 8
DISTURBED = 0.03  # of a block, that others had a core
LEAST_US = 5.0  # what a request is taken to take where it takes nothing


def rates(blocks: Sequence[Block]) -> list[float]:
    return [block.rate for block in blocks]


def loss(ours: Sequence[Block], base: Sequence[Block]) -> Estimate:
    """Percent of the base's throughput that is lost, block by block: the mean of the middle half of all pairs that
    nobody disturbed (of all, if those are too few)."""
    pairs = list(zip(ours, base, strict=True))
    quiet = [pair for pair in pairs if pair[0].quiet and pair[1].quiet]
    chosen = quiet if 2 * len(quiet) >= len(pairs) else pairs
    return middle([100 * (1 - a.rate / b.rate) for a, b in chosen])


def middle(samples: Sequence[float]) -> Estimate:
    """Mean of the middle half and its standard error, from the spread of the samples with both tails pulled in: a block
    in which the machine stopped counts as one that was slow, and not by how much."""
    ordered = np.sort(np.asarray(samples, dtype=float))
    cut = len(ordered) // 4
    value = float(ordered[cut : len(ordered) - cut].mean())
    pulled = np.clip(ordered, ordered[cut], ordered[len(ordered) - cut - 1])
    spread = float(pulled.std(ddof=1)) if len(ordered) > 1 else float("inf")
    return Estimate(value, spread / ((1 - 2 * cut / len(ordered)) * len(ordered) ** 0.5))


def add_rate(report: Report, name: str, group: str, blocks: Sequence[Block], note: str) -> float:
    """A row whose times are those from one request's end to the next at saturation, a sample a block; requests/s."""
    found = rates(blocks)
    rate = statistics.median(found)
    report.add(name, group, [int(1e9 / each) for each in found], f"{rate:,.0f} requests/s; {note}")
    return rate


def add_seat(report: Report, mode: Mode, group: str, blocks: Sequence[Block]) -> None:
    """Rows of where a request's time goes between its arrival and its end, as the host saw it at the seat."""
    raw = [block.seat for block in blocks]
    seats: list[SeatStatistics] = [seat_of(mode.name, each) for each in raw]
    hits, misses = (sum(getattr(seat, name) for seat in seats) for name in ("hits", "misses"))
    refused = sum(sum(seat.refused.values()) for seat in seats)
    looks = f"{hits / max(1, hits + misses):.2%} of looks found a decision, {refused} of {hits + refused} refused"
    for stage in STAGES:
        buckets = merged(*(each["stages"].get(stage, []) for each in raw))
        add_histogram(report, f"{mode.name}: {stage}", group, Histogram.of(buckets), f"since the stage before; {looks}")
    age = Histogram.of(merged(*(each["age"] for each in raw)))
    add_histogram(report, f"{mode.name}: staleness", group, age, "age of a decision when its worker took it up")


def add_histogram(report: Report, name: str, group: str, found: Histogram, note: str) -> None:
    """A row of a histogram: upper ends of buckets that are 6 % wide."""
    if found.count == 0:
        report.absent(name, group, "nothing was counted")
        return
    report.rows.append(Row(name, group, found.count, found.p50_us, found.p99_us, found.p999_us, note))
