"""Latency against load, from the intended arrival, and what becomes of short requests behind long ones.

The load is a Poisson process at a share of what the in-line FIFO serves at saturation on the same requests. Short
requests of the RocksDB load are its GETs: under FIFO they wait behind a RANGE, under Shinjuku the RANGE leaves its
worker after a quantum.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from teal.bench.lanes import Estimate, LaneError, estimate
from teal.bench.report import Promise, percentile

from . import loads
from .mode import Mode, inline, offloaded
from .saturation import POLICIES
from .stage import Block, Stage, add_seat

BAR = "wave.shinjuku_vs_fifo.short_p999_ratio"
PROMISES = {BAR: Promise(10, "higher", "×")}  # noqa: RUF001
SHORT = 0  # the first kind of each load
AT = 0.75


@dataclass(frozen=True)
class Curve:
    """One line of a picture: (share of saturation, p99 of short requests in us)."""

    name: str
    points: list[tuple[float, float]]


def capacity(stage: Stage, load: loads.Load) -> float:
    """Requests a second at saturation, in-line FIFO."""
    n, base = stage.requests(load), inline("fifo", "fifo")
    return statistics.median(stage.block(base, load, n, number, warm=n // 4).rate for number in range(3))


def p999_ratio(fifo: Sequence[Block], shinjuku: Sequence[Block]) -> Estimate:
    """Block by block: p99.9 of the short requests under FIFO over that under Shinjuku."""
    return estimate([float(tail(a) / tail(b)) for a, b in zip(fifo, shinjuku, strict=True)])


def tail(block: Block) -> float:
    ordered = np.sort(block.of(SHORT))
    return float(ordered[min(len(ordered) - 1, int(np.ceil(0.999 * len(ordered))) - 1)])


def measure(stage: Stage) -> dict[str, list[Curve]]:
    stage.rocks()
    short_behind_long(stage)
    drawn = [loads.rocksdb(), loads.exponential(), loads.bimodal()]
    try:
        drawn.append(loads.onnx(*map(str, stage.nets())))
    except LaneError as error:
        stage.report.absent("onnx", "onnx", str(error))
    return {load.name: curves(stage, load) for load in drawn}


def short_behind_long(stage: Stage) -> None:
    load, found, lines = loads.rocksdb(), {}, []
    for link in ("shm", "pcie"):
        modes = [offloaded(name, policy, link) for name, policy in POLICIES.items()]
        blocks: dict[str, list[Block]] = {mode.name: [] for mode in modes}
        rate = AT * capacity(stage, load)
        n = int(rate * stage.plan.seconds)
        for number in range(stage.plan.pairs):
            stage.say(f"short behind long, {link}, pair {number + 1} of {stage.plan.pairs}")
            for mode in modes if number % 2 == 0 else reversed(modes):
                blocks[mode.name].append(stage.block(mode, load, n, number, rate=rate))
        for mode in modes:
            add_latencies(stage, mode, load, f"rocksdb at {AT:.0%} of saturation", blocks[mode.name])
        add_seat(stage.report, modes[-1], f"stages, rocksdb at {AT:.0%} of saturation", blocks[modes[-1].name])
        found[link] = p999_ratio(*(blocks[mode.name] for mode in modes))
        lines.append(f"{link} {found[link].value:.1f} ± {found[link].se:.1f}")
    worse = min(found, key=lambda link: found[link].value)
    note = f"GETs of the RocksDB load at {AT:.0%} of saturation, pairs of blocks: {', '.join(lines)} ({worse} decides)"
    stage.report.judge(BAR, found[worse].value, se=found[worse].se, note=note)


def add_latencies(stage: Stage, mode: Mode, load: loads.Load, group: str, blocks: Sequence[Block]) -> None:
    """A row for each kind of request."""
    late = max(block.most_late_ns for block in blocks) / 1e3
    for index, kind in enumerate(load.kinds):
        samples = np.concatenate([block.of(index) for block in blocks]).tolist()
        note = f"from the intended arrival; the load was at most {late:.0f} µs late"
        stage.report.add(f"{mode.name}: {kind.name}", group, samples, note)


def curves(stage: Stage, load: loads.Load) -> list[Curve]:
    """p99 of the short requests by load, for each policy in-line and off-loaded."""
    modes: list[Mode] = []
    for name, policy in POLICIES.items():
        modes += [inline(name, policy), offloaded(name, policy, "shm"), offloaded(name, policy, "pcie")]
    found: dict[str, list[tuple[float, float]]] = {mode.name: [] for mode in modes}
    full = capacity(stage, load)
    for number, share in enumerate(stage.plan.loads):
        for mode in modes:
            stage.say(f"{load.name} at {share:.0%}: {mode.name}")
            n = max(200, int(full * share * stage.plan.curve_seconds))
            block = stage.block(mode, load, n, number, rate=full * share)
            add_latencies(stage, mode, load, f"{load.name} at {share:.0%} of saturation", [block])
            p99 = percentile(np.sort(block.of(SHORT)).tolist(), 0.99)
            if p99 is not None:
                found[mode.name].append((share, p99 / 1e3))
    return [Curve(name, points) for name, points in found.items()]
