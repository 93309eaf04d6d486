"""Which page comes next? Trains Kleio on page accesses: python examples/systems/train_kleio.py [FILE [STEPS]].

The trace: a program that goes round one of 40 loops of pages for a while, then another; loops share pages, so that the
page alone does not say which comes next, and a few accesses are strays. The file is 6.3 MB, which is why it is made
when it is wanted and does not come with Teal.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mlp
import numpy as np

from teal.kernel.systems import file, reference

PAGES, UNITS, STEPS = 621, 256, 6
Array = mlp.Array


def trace(accesses: int, seed: int) -> np.ndarray:
    """Pages in the order they are touched: (n) int32. The loops are the same for every seed."""
    source = np.random.default_rng(7)
    loops = [source.permutation(PAGES)[:24] for _ in range(40)]
    random = np.random.default_rng(seed)
    pages: list[np.ndarray] = []
    total = 0
    while total < accesses:
        length = int(random.geometric(1 / 60)) + STEPS
        pages.append(np.roll(loops[random.integers(len(loops))], -random.integers(24))[np.arange(length) % 24])
        total += length
    run = np.concatenate(pages)[:accesses].astype(np.int32)
    stray = random.random(accesses) < 0.02
    run[stray] = random.integers(0, PAGES, stray.sum())
    return run


def windows(run: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the six pages before, the page): (n, 6), (n)."""
    views = np.lib.stride_tricks.sliding_window_view(run, STEPS + 1)
    return np.ascontiguousarray(views[:, :STEPS]), np.ascontiguousarray(views[:, STEPS])


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class Lstm:
    """One layer: forward keeps what backward needs. Gates stand as input, forget, cell, output."""

    def __init__(self, u: Array) -> None:
        self.u = u

    def forward(self, driven: Array) -> Array:
        """driven: (steps, batch, 4 units), what the inputs and the bias bring. Returns the hidden states."""
        steps, batch, _ = driven.shape
        self.gates = np.empty_like(driven)
        self.cells = np.zeros((steps + 1, batch, UNITS), np.float32)
        self.hidden = np.zeros((steps + 1, batch, UNITS), np.float32)
        for t in range(steps):
            z = driven[t] + self.hidden[t] @ self.u
            gates = sigmoid(z)
            gates[:, 2 * UNITS : 3 * UNITS] = np.tanh(z[:, 2 * UNITS : 3 * UNITS])
            i, f, g, o = np.split(gates, 4, axis=1)
            self.cells[t + 1] = f * self.cells[t] + i * g
            self.hidden[t + 1] = o * np.tanh(self.cells[t + 1])
            self.gates[t] = gates
        return self.hidden[1:]

    def backward(self, wanted: Array) -> tuple[Array, Array]:
        """wanted: gradient of the hidden states. Returns the gradients of ``driven`` and ``u``."""
        steps = len(wanted)
        driven = np.empty_like(self.gates)
        later_h = np.zeros_like(wanted[0])
        later_c = np.zeros_like(wanted[0])
        for t in reversed(range(steps)):
            i, f, g, o = np.split(self.gates[t], 4, axis=1)
            shaped = np.tanh(self.cells[t + 1])
            h = wanted[t] + later_h
            c = later_c + h * o * (1 - shaped * shaped)
            parts = (
                c * g * i * (1 - i),
                c * self.cells[t] * f * (1 - f),
                c * i * (1 - g * g),
                h * shaped * o * (1 - o),
            )
            driven[t] = np.concatenate(parts, axis=1)
            later_c = c * f
            later_h = driven[t] @ self.u.T
        return driven, np.tensordot(self.hidden[:-1], driven, ((0, 1), (0, 1))).astype(np.float32)


def new_weights(random: np.random.Generator) -> mlp.Weights:
    def normal(rows: int, columns: int, size: float) -> Array:
        return (random.normal(size=(rows, columns)) * size).astype(np.float32)

    gates = 4 * UNITS
    weights = {"w0": normal(PAGES, gates, 0.3), "u0": normal(UNITS, gates, 0.06), "b0": np.zeros(gates, np.float32)}
    weights |= {"w1": normal(UNITS, gates, 0.06), "u1": normal(UNITS, gates, 0.06), "b1": np.zeros(gates, np.float32)}
    weights |= {"w2": normal(UNITS, PAGES, 0.06), "b2": np.zeros(PAGES, np.float32)}
    for bias in ("b0", "b1"):
        weights[bias][UNITS : 2 * UNITS] = 1  # remember, to begin with
    return weights


def gradients(w: mlp.Weights, x: np.ndarray, following: np.ndarray) -> tuple[float, mlp.Weights]:
    """Loss and gradients of a batch."""
    first, second = Lstm(w["u0"]), Lstm(w["u1"])
    h1 = first.forward(w["w0"][x.T] + w["b0"])
    h2 = second.forward(h1 @ w["w1"] + w["b1"])
    probability = mlp.softmax(h2[-1] @ w["w2"] + w["b2"])
    rows = np.arange(len(x))
    loss = float(-np.log(probability[rows, following] + 1e-9).mean())
    error = probability
    error[rows, following] -= 1
    error /= np.float32(len(x))
    back = np.zeros_like(h2)
    back[-1] = error @ w["w2"].T
    d2, u1 = second.backward(back)
    d1, u0 = first.backward(d2 @ w["w1"].T)
    flat1, flat2 = d1.reshape(-1, 4 * UNITS), d2.reshape(-1, 4 * UNITS)
    w0 = mlp.one_hot(x.T.ravel(), PAGES).T @ flat1
    w1 = h1.reshape(-1, UNITS).T @ flat2
    return loss, {
        "w0": w0, "u0": u0, "b0": flat1.sum(axis=0), "w1": w1, "u1": u1, "b1": flat2.sum(axis=0),
        "w2": h2[-1].T @ error, "b2": error.sum(axis=0),
    }  # fmt: skip


def main(where: str = "", steps: str = "150") -> None:
    began = time.perf_counter()
    path = Path(where or Path(__file__).parent / "models" / "kleio.safetensors")
    run = trace(120_000, seed=1)
    x, following = windows(run)
    random = np.random.default_rng(2)
    weights = new_weights(random)
    adam = mlp.Adam(weights, 4e-3)
    for step in range(int(steps)):
        part = random.integers(0, len(x), 128)
        loss, change = gradients(weights, x[part], following[part])
        adam.step(change, 4e-3 * (1 - 0.9 * step / int(steps)))
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save(path, "kleio", weights)
    rest, truth = windows(trace(4_000, seed=3))
    verdict = reference.kleio(weights, rest)[1]
    after = np.zeros(PAGES, np.int32)
    after[run[:-1]] = run[1:]  # what came after each page, the last time
    print(f"kleio: {mlp.percent(verdict == truth)} of {len(rest)} pages foretold; {steps} steps, loss {loss:.2f}")
    usual = mlp.percent(after[rest[:, -1]] == truth)
    print(f"what came after that page the last time: {usual}; any page: {100 / PAGES:.1f} %")
    print(f"{time.perf_counter() - began:.1f} s → {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
