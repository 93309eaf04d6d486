"""Training small networks in NumPy, for the scripts beside this one: Adam, dense layers, softmax or square loss."""

from __future__ import annotations

import os
from itertools import pairwise

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: for matrices this small threads only cost

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Weights = dict[str, Array]


class Adam:
    """Adam over named arrays, changed in place."""

    def __init__(self, weights: Weights, rate: float) -> None:
        self._weights = weights
        self._rate = rate
        self._first = {name: np.zeros_like(value) for name, value in weights.items()}
        self._second = {name: np.zeros_like(value) for name, value in weights.items()}
        self._steps = 0

    def step(self, gradients: Weights, rate: float | None = None) -> None:
        self._steps += 1
        correction = np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps)
        for name, gradient in gradients.items():
            first, second = self._first[name], self._second[name]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient * gradient - second)
            self._weights[name] -= np.float32((rate or self._rate) * correction) * first / (np.sqrt(second) + 1e-8)


def new_weights(sizes: list[int], random: np.random.Generator) -> Weights:
    """w0, b0, w1, … of dense layers, (in, out)."""
    weights: Weights = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights[f"w{layer}"] = (random.normal(size=(inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)
        weights[f"b{layer}"] = np.zeros(outputs, np.float32)
    return weights


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def forward(weights: Weights, x: Array, *, linear: bool = False) -> list[Array]:
    """Outputs of every layer, ``x`` first. ReLU between layers unless linear."""
    layers = len(weights) // 2
    values = [x]
    for layer in range(layers):
        h = values[-1] @ weights[f"w{layer}"] + weights[f"b{layer}"]
        values.append(h if linear or layer + 1 == layers else np.maximum(h, 0))
    return values


def train(
    weights: Weights,
    x: Array,
    wanted: Array,
    *,
    epochs: int,
    random: np.random.Generator,
    rate: float = 2e-3,
    batch: int = 256,
    linear: bool = False,
    square: bool = False,
) -> None:
    """Fits in place. wanted: (n, classes) one-hot for softmax, (n, outputs) for square loss."""
    adam = Adam(weights, rate)
    for epoch in range(epochs):
        order = random.permutation(len(x))
        for start in range(0, len(x), batch):
            part = order[start : start + batch]
            values = forward(weights, x[part], linear=linear)
            guess = values[-1] if square else softmax(values[-1])
            error = (guess - wanted[part]) / np.float32(len(part))
            gradients: Weights = {}
            for layer in reversed(range(len(weights) // 2)):
                gradients[f"w{layer}"] = values[layer].T @ error
                gradients[f"b{layer}"] = error.sum(axis=0)
                error = error @ weights[f"w{layer}"].T
                if layer > 0 and not linear:
                    error *= values[layer] > 0
            adam.step(gradients, rate * (1 - 0.9 * epoch / epochs))


def one_hot(classes: npt.NDArray[np.integer], count: int) -> Array:
    return np.eye(count, dtype=np.float32)[classes]


def percent(right: npt.NDArray[np.bool_]) -> str:
    return f"{100 * np.mean(right):.1f} %"
