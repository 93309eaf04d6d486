"""Should this task move to the other run queue? Trains MLLB: python examples/systems/train_mllb.py [FILE].

The trace: pairs of run queues and a task that might move from the busier to the idler one. The teacher is a scheduler
with hindsight: it weighs the wait that the move saves against the cache and memory it leaves behind, which it knows and
the network has to guess from what the kernel sees.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mlp
import numpy as np

from teal.kernel.systems import file, reference

# What a scheduler sees, 15 columns
FEATURES = (
    "source length", "source load", "target length", "target load", "target is idle", "target is newly idle",
    "same core complex", "same node", "task runs on its preferred node", "target is its preferred node",
    "µs since it last ran / 1000", "its working set, MiB", "page faults on the target's node", "failed attempts",
    "is the wake-up partner of one that is running",
)  # fmt: skip


def trace(moves: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """((n, 15) float32, whether the move pays)."""
    random = np.random.default_rng(seed)
    lengths = np.sort(random.poisson(3.0, (moves, 2)), axis=1)
    loads = lengths * random.gamma(4.0, 0.25, (moves, 2))
    idle = lengths[:, 0] == 0
    same_complex = random.random(moves) < 0.4
    same_node = same_complex | (random.random(moves) < 0.5)
    preferred_here = random.random(moves) < 0.3
    preferred_there = ~preferred_here & (random.random(moves) < 0.3)
    since = random.exponential(2.0, moves)
    working_set = random.exponential(1.5, moves)
    faults = random.poisson(1.0 + 3.0 * preferred_there)
    failed = random.poisson(0.6, moves)
    partner = random.random(moves) < 0.2
    newly = idle & (random.random(moves) < 0.5)
    saved = (loads[:, 1] - loads[:, 0]) * 0.6 + 0.8 * idle
    left_behind = working_set * np.exp(-since) * np.where(same_complex, 0.3, 1.2) + 0.9 * (~same_node & preferred_here)
    pays = saved + 0.25 * faults * preferred_there + 0.15 * failed - left_behind - 0.7 * partner
    pays += random.normal(0, 0.15, moves) - 0.9
    columns = [
        lengths[:, 1], loads[:, 1], lengths[:, 0], loads[:, 0], idle, newly, same_complex, same_node, preferred_here,
        preferred_there, since, working_set, faults, failed, partner,
    ]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.float32), pays > 0


def main(where: str = "") -> None:
    began = time.perf_counter()
    path = Path(where or Path(__file__).parent / "models" / "mllb.safetensors")
    x, moves = trace(40_000, seed=1)
    half = len(x) * 3 // 4
    random = np.random.default_rng(2)
    weights = mlp.new_weights([15, 10, 1], random)
    mlp.train(
        weights, x[:half], moves[:half, None].astype(np.float32), epochs=30, random=random, rate=5e-3, square=True
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save(path, "mllb", weights)
    rest, truth = x[half:], moves[half:]
    verdict = reference.mllb(weights, rest)[1] == 1
    longer = rest[:, 0] > rest[:, 2] + 1
    often = mlp.percent(truth == (truth.mean() > 0.5))
    print(f"mllb: {mlp.percent(verdict == truth)} of {len(rest)} decisions as with hindsight")
    print(f"always the same: {often}; if the queue is longer by two: {mlp.percent(longer == truth)}")
    print(f"{time.perf_counter() - began:.1f} s → {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
