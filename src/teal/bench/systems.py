"""Batch sweeps of the systems loads: what a batch takes on each path, and from which batch on a device pays.

A path is a function: (load, a model file, a batch of ``x``, n) → the times of n runs, and the CPU time of this process
and its children meanwhile. Two are here: ``kernel_path``, the kernel alone in this process, and ``call_path``, prepared
calls of a resident model. Paths through a device are the caller's. All paths of a sweep take turns, batch by batch,
after untimed runs.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from teal import _core
from teal.kernel.systems import LOADS, file

from .energy import Meter
from .lanes import Times
from .report import Row, row_of

GROUP = "systems"
DOUBLES = tuple(1 << power for power in range(11))  # 1 to 1024
BATCHES: dict[str, tuple[int, ...]] = {  # of LAIKA's and LAKE's evaluations
    "linnos": DOUBLES,
    "linnos+1": DOUBLES,
    "linnos+2": DOUBLES,
    "mllb": (*DOUBLES, 2048, 4096, 8192, 16384, 32768, 65536),
    "kml": (*DOUBLES, 2048, 4096),
    "kleio": (20, 320, 620, 1160),
}
# Published, in µs, on other machines (LAKE, on an RTX 4090 beside its CPU): for the reader, never for a bar.
PUBLISHED_CPU_US: dict[str, dict[int, float]] = {
    "linnos": {1: 7},
    "linnos+1": {1: 101},
    "linnos+2": {1: 196},
    "mllb": {32: 6, 64: 13, 128: 26, 256: 54, 512: 106, 1024: 211},
    "kml": {1: 19, 64: 26, 128: 36, 256: 59, 512: 106, 1024: 199},
    "kleio": {20: 45_000, 320: 138_000, 620: 182_600, 1160: 300_800},
}

Array = npt.NDArray[Any]


class Sweep(Protocol):
    """``n`` runs of a batch: one block."""

    def __call__(self, load: str, model: bytes, x: Array, n: int) -> Times: ...


def measured(run: Callable[[int], Sequence[int]], n: int, warm: int) -> Times:
    """``n`` runs after ``warm`` untimed ones: their ns, and what all of them cost."""
    meter = Meter()
    meter.start([os.getpid()])
    run(warm)
    samples = array("q", run(n))
    times = Times([samples])
    times.spent(warm + n, meter.stop())
    return times


def timed(call: Callable[[], Any], n: int) -> Times:
    """The same of a call."""

    def run(times: int) -> Sequence[int]:
        clock, samples = time.perf_counter_ns, []
        for _ in range(times):
            start = clock()
            call()
            samples.append(clock() - start)
        return samples

    return measured(run, n, max(3, n // 10))


def random_model(load: str, seed: int = 0) -> bytes:
    """A model file with random weights: as fast as a trained one."""
    random = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for name, shape in LOADS[load].tensors.items():
        if LOADS[load].weights == "int64":
            tensors[name] = random.integers(-60, 61, shape)
        elif name == "std":
            tensors[name] = np.ones(shape, np.float32)
        else:
            tensors[name] = (random.normal(size=shape) / 16).astype(np.float32)
    return file.pack(load, tensors)


def random_inputs(load: str, batch: int, seed: int = 0) -> Array:
    """A batch of ``x``: digits, pages or normal numbers."""
    random = np.random.default_rng(seed)
    known = LOADS[load]
    if known.input == "uint8":
        return random.integers(0, 10, (batch, known.columns)).astype(np.uint8)
    if known.input == "int32":
        return random.integers(0, 621, (batch, known.columns)).astype(np.int32)
    return random.normal(size=(batch, known.columns)).astype(np.float32)


def kernel_path(load: str, model: bytes, x: Array, n: int) -> Times:
    """The kernel alone, in this process: no call around it."""
    fd = file.seal(model)
    try:
        network = _core.SystemsNetwork(fd)
    finally:
        os.close(fd)
    scores = np.empty((len(x), LOADS[load].classes), LOADS[load].weights)
    verdict = np.empty(len(x), np.int32)

    def run(times: int) -> Sequence[int]:
        return [round(ns) for ns in network.measure(x, scores, verdict, times)]

    return measured(run, n, max(1, n // 10))


def call_path(host: Any) -> Sweep:
    """Prepared calls of a model that is resident in ``host``, a teal.Host; the input lies in place."""

    def run(load: str, model: bytes, x: Array, n: int) -> Times:
        name = f"bench-{load.replace('+', '-')}"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            path.write_bytes(model)
            resident = host.load(name, path)
        try:
            given = resident.new_inputs(x=x.shape)
            given["x"].numpy()[:] = x
            return timed(resident.prepare(**given), n)
        finally:
            host.unload(name)

    return run


def repeats(load: str, batch: int, seconds: float) -> int:
    """Runs that take about ``seconds``, by a guess of the kernel's speed; at least 5, at most 10,000."""
    item_ns = {"linnos": 100, "linnos+1": 1000, "linnos+2": 2000, "mllb": 5, "kml": 5, "kleio": 70_000}[load]
    return int(min(10_000, max(5, seconds * 1e9 / (500 + batch * item_ns))))


def sweep(
    load: str,
    paths: Mapping[str, Sweep],
    *,
    batches: Iterable[int] | None = None,
    seconds: float = 0.2,
    say: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """One row for each batch and path, named ``"mllb cpu 32"``; ``seconds`` for each of them, about."""
    model = random_model(load)
    rows = []
    for batch in BATCHES[load] if batches is None else batches:
        x = random_inputs(load, batch)
        for name, path in paths.items():
            say(f"{load}, {name}, batch {batch}")
            times = path(load, model, x, repeats(load, batch, seconds))
            note = f"{samples_rate(times.all(), batch)} items/s"
            rows.append(row_of(f"{load} {name} {batch}", GROUP, times.all(), note, times.effort, times.calls))
    return rows


def samples_rate(samples: Sequence[int], batch: int) -> str:
    """Items a second at the median, as people read it: 3.1 M."""
    median = float(np.median(samples)) if len(samples) else math.inf
    rate = batch * 1e9 / max(median, 1.0)
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if rate >= size:
            return f"{rate / size:.3g}{letter}"
    return f"{rate:.3g}"


def medians(rows: Iterable[Row], load: str, path: str) -> dict[int, float]:
    """Batch → median µs of one path, out of the rows of ``sweep``. Rows without a median are left out."""
    found: dict[int, float] = {}
    for row in rows:
        name, _, batch = row.name.rpartition(" ")
        if name == f"{load} {path}" and row.p50_us is not None:
            found[int(batch)] = row.p50_us
    return found


def break_even(cpu: Mapping[int, float], other: Mapping[int, float]) -> int | None:
    """The smallest batch from which on ``other`` is never slower than ``cpu``; None when there is none.

    Both map batches to times; only batches that both have count. Between the last batch where ``other`` loses and the
    next, where it wins, both are straight lines on double logarithmic paper.
    """
    batches = sorted(set(cpu) & set(other))
    if not batches or other[batches[-1]] > cpu[batches[-1]]:
        return None
    losing = [batch for batch in batches if other[batch] > cpu[batch]]
    if not losing:
        return batches[0]
    low = losing[-1]
    high = batches[batches.index(low) + 1]
    at_low = math.log(other[low] / cpu[low])  # above 0
    at_high = math.log(other[high] / cpu[high])  # 0 or below
    share = at_low / (at_low - at_high)
    crossing = float(low * (high / low) ** share)
    return min(high, max(low + 1, math.ceil(crossing - 1e-9)))
