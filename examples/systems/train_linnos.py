"""Will this read be slow? Trains LinnOS on a simulated disk: python examples/systems/train_linnos.py [LOAD [FILE]].

LOAD is linnos, linnos+1 or linnos+2.

The trace: reads arrive in bursts at a disk of four channels, which now and then collects garbage or flushes
its write buffer, and is many times slower meanwhile. What the network sees of a read is what a block layer knows when
it comes, as 31 decimal digits: reads in flight (3 digits), then for the last four reads that are done, how many were in
flight when they came (3 digits each) and how long they took in µs (4 digits each).
"""

from __future__ import annotations

import heapq
import sys
import time
from pathlib import Path

import mlp
import numpy as np

from teal import InvalidArgument
from teal.kernel.systems import file, reference

HISTORY = 4


def trace(reads: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(what is known when each read comes, how long it took in µs): (n, 9) numbers, (n)."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(1.0, reads) * np.where(
        np.repeat(random.random(reads // 20 + 1) < 0.35, 20)[:reads], 12, 90
    )
    free = [0.0] * 4  # when each channel is free again
    in_flight: list[tuple[float, int, float]] = []  # (end, in flight when it came, duration)
    done = [(0, 100.0)] * HISTORY
    busy_from, busy_until = 3000.0, 5000.0  # of the garbage collection
    known, took = np.empty((reads, 1 + 2 * HISTORY)), np.empty(reads)
    now = 0.0
    for read in range(reads):
        now += gaps[read]
        while in_flight and in_flight[0][0] <= now:
            _, depth, duration = heapq.heappop(in_flight)
            done = [*done[1:], (depth, duration)]
        if now > busy_until:
            busy_from = now + random.exponential(6000)
            busy_until = busy_from + random.uniform(500, 3000)
        known[read] = [len(in_flight), *(depth for depth, _ in done), *(duration for _, duration in done)]
        channel = int(np.argmin(free))
        start = max(now, free[channel])
        service = random.uniform(60, 110) if not busy_from <= start < busy_until else random.uniform(300, 700)
        free[channel] = start + service
        took[read] = free[channel] - now
        heapq.heappush(in_flight, (free[channel], len(in_flight), took[read]))
    return known, took


def digits_of(known: np.ndarray) -> np.ndarray:
    """(n, 9) numbers → (n, 31) decimal digits, uint8: what the model's ``x`` is."""
    columns = []
    for column, width in enumerate([3] * (1 + HISTORY) + [4] * HISTORY):
        number = np.minimum(known[:, column], 10**width - 1).astype(np.int64)
        columns += [number // 10**place % 10 for place in reversed(range(width))]
    return np.stack(columns, axis=1).astype(np.uint8)


def quantised(weights: mlp.Weights, scale: int) -> dict[str, np.ndarray]:
    """Scaled integers: each layer multiplies by ``scale`` once more, so its bias is scaled once more too."""
    layers = len(weights) // 2
    whole = {f"w{i}": np.rint(weights[f"w{i}"] * scale).astype(np.int64) for i in range(layers)}
    whole |= {
        f"b{i}": np.rint(weights[f"b{i}"].astype(np.float64) * float(scale) ** (i + 1)).astype(np.int64)
        for i in range(layers)
    }
    return whole


def save(path: Path, load: str, weights: mlp.Weights) -> tuple[int, dict[str, np.ndarray]]:
    """Writes the model at the finest scale that is proven not to overflow."""
    for power in range(10, 3, -1):
        whole = quantised(weights, 1 << power)
        try:
            file.save(path, load, whole, {"scale": str(1 << power)})
        except InvalidArgument:
            continue
        return 1 << power, whole
    raise SystemExit("no scale fits int64: train with smaller weights")


def main(load: str = "linnos", where: str = "") -> None:
    began = time.perf_counter()
    path = Path(where or Path(__file__).parent / "models" / f"{load}.safetensors")
    known, took = trace(45_000, seed=1)
    limit = 3 * np.median(took)
    x, slow = digits_of(known), (took > limit).astype(np.int64)
    half = len(x) * 2 // 3
    random = np.random.default_rng(2)
    weights = mlp.new_weights([31] + [256] * (1 + int(load.removeprefix("linnos") or 0)) + [2], random)
    epochs = 12 if load == "linnos" else 4
    mlp.train(
        weights, x[:half].astype(np.float32) / 9, mlp.one_hot(slow[:half], 2), epochs=epochs, random=random, rate=1e-3
    )
    weights["w0"] /= 9  # the kernel is given digits, not fractions
    path.parent.mkdir(parents=True, exist_ok=True)
    scale, whole = save(path, load, weights)
    rest, truth = x[half:], slow[half:]
    verdict = reference.linnos(whole, rest)[1]
    print(f"{load}: {mlp.percent(verdict == truth)} of {len(rest)} reads foretold, slow is above {limit:.0f} µs")
    last = mlp.percent((known[half:, -1] > limit) == truth)
    print(f"always fast: {mlp.percent(truth == 0)}; as slow as the last read: {last}")
    floats = mlp.forward(weights, rest.astype(np.float32))[-1].argmax(axis=1)
    print(f"scale {scale}: {np.sum(floats != verdict)} verdicts differ from float32")
    print(f"{time.perf_counter() - began:.1f} s → {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
