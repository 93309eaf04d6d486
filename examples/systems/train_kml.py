"""Which readahead suits these accesses? Trains KML: python examples/systems/train_kml.py [FILE].

The trace: windows of page accesses of a store that reads in order, reads backwards, reads at random, or reads and
writes at random, on files of many sizes. Five features of a window say which: how many accesses, the running mean and
the deviation of their offsets, the mean distance from one to the next, and the readahead in force.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mlp
import numpy as np

from teal.kernel.systems import file, reference
from teal.kernel.systems.running import Running

CLASSES = ("in order", "backwards", "at random", "at random, with writes")


def window(kind: int, random: np.random.Generator) -> list[float]:
    """Features of one window of accesses: 5 numbers."""
    pages = random.integers(20_000, 60_000)
    readahead = float(random.choice([8, 16, 32, 64, 128, 256]))
    rate = {0: 900 + 2 * readahead, 1: 500.0, 2: 260.0, 3: 130.0}[kind] * random.uniform(0.6, 1.5)
    accesses = max(int(rate), 8)
    if kind < 2:
        step = 1 if kind == 0 else -1
        offsets = (random.integers(0, pages) + step * np.arange(accesses)) % pages
        stray = random.random(accesses) < random.choice([0.01, 0.1, 0.3])
        offsets[stray] = random.integers(0, pages, stray.sum())
    else:
        offsets = random.integers(0, pages, accesses)
    return [float(accesses), offsets.mean(), offsets.std(), np.abs(np.diff(offsets)).mean(), readahead]


def main(where: str = "") -> None:
    began = time.perf_counter()
    path = Path(where or Path(__file__).parent / "models" / "kml.safetensors")
    random = np.random.default_rng(1)
    kinds = random.integers(0, 4, 6000)
    x = np.array([window(kind, random) for kind in kinds], np.float32)
    half = len(x) * 3 // 4
    running = Running(5)
    for start in range(0, half, 100):
        running.update(x[start : start + 100])
    mean, deviation = running.mean.astype(np.float32), running.deviation.astype(np.float32)
    weights = mlp.new_weights([5, 15, 5, 4], random)
    z = (x[:half] - mean) / deviation
    mlp.train(weights, z, mlp.one_hot(kinds[:half], 4), epochs=40, random=random, rate=5e-3, batch=64, linear=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {**weights, "mean": mean, "std": deviation}
    file.save(path, "kml", tensors)
    rest, truth = x[half:], kinds[half:]
    verdict = reference.kml(tensors, rest)[1]
    near = np.where(rest[:, 3] < 2000, 0, 2)
    print(f"kml: {mlp.percent(verdict == truth)} of {len(rest)} windows told apart: {', '.join(CLASSES)}")
    often = mlp.percent(truth == np.bincount(truth).argmax())
    print(f"always the same: {often}; by the distance alone: {mlp.percent(near == truth)}")
    print(f"{time.perf_counter() - began:.1f} s → {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
