"""The systems loads in NumPy: the specification that every kernel is compared with.

Integers are exact; floats are within 1e-5 of these (relative to the largest magnitude in a sum). Three rules fix what
NumPy leaves open: argmax takes the first of equals and never prefers a NaN, ReLU turns NaN into 0, and a page index
outside 0 to 620 is a one-hot row of zeros (no access). No input is invalid: linnos takes any byte, not only digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from teal.kernel.systems.file import Array

Answer = tuple[Array, Array]  # scores (batch, classes), verdict (batch)


def argmax(scores: Array) -> Array:
    """Index of the largest in each row; the first of equals; a NaN wins only in the first place, where it stays."""
    best = scores[:, 0].copy()
    index = np.zeros(len(scores), np.int32)
    for j in range(1, scores.shape[1]):
        above = scores[:, j] > best
        best[above] = scores[above, j]
        index[above] = j
    return index


def relu(x: Array) -> Array:
    return np.where(x > 0, x, np.zeros((), x.dtype))


def linnos(weights: Mapping[str, Array], x: Array) -> Answer:
    """x: (batch, 31) uint8, a row of digits. Verdict 1: the read will be slow. All of it in int64."""
    layers = len(weights) // 2
    h = x.astype(np.int64)
    for layer in range(layers):
        h = h @ weights[f"w{layer}"] + weights[f"b{layer}"]
        if layer + 1 < layers:
            h = relu(h)
    return h, argmax(h)


def mllb(weights: Mapping[str, Array], x: Array) -> Answer:
    """x: (batch, 15) float32. Verdict 1: move the task."""
    h = relu(x @ weights["w0"] + weights["b0"])
    scores = h @ weights["w1"] + weights["b1"]
    return scores, (scores[:, 0] > np.float32(0.5)).astype(np.int32)


def kml(weights: Mapping[str, Array], x: Array) -> Answer:
    """x: (batch, 5) float32, not normalised. Verdict: class of access pattern."""
    h = (x - weights["mean"]) / weights["std"]
    for layer in range(3):
        h = h @ weights[f"w{layer}"] + weights[f"b{layer}"]
    return h, argmax(h)


def one_hot(x: Array, classes: int) -> Array:
    """(batch, steps) int32 → (batch, steps, classes) float32; an index out of range is a row of zeros."""
    hot: Array = (x[..., None] == np.arange(classes, dtype=x.dtype)).astype(np.float32)
    return hot


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-np.clip(x, -80, 80)))
    return result


def lstm(x: Array, w: Array, u: Array, b: Array) -> Array:
    """(batch, steps, features) → (batch, steps, units). Gates stand as input, forget, cell, output."""
    batch, steps, _ = x.shape
    units = u.shape[0]
    h = np.zeros((batch, units), np.float32)
    c = np.zeros((batch, units), np.float32)
    hidden = np.empty((batch, steps, units), np.float32)
    for step in range(steps):
        i, f, g, o = np.split(x[:, step] @ w + h @ u + b, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        hidden[:, step] = h
    return hidden


def kleio(weights: Mapping[str, Array], x: Array) -> Answer:
    """x: (batch, 6) int32, the last six pages. Scores: probability of each page to come next."""
    hot = one_hot(x, weights["w0"].shape[0])
    first = lstm(hot, weights["w0"], weights["u0"], weights["b0"])
    second = lstm(first, weights["w1"], weights["u1"], weights["b1"])
    logits = second[:, -1] @ weights["w2"] + weights["b2"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True), argmax(logits)


REFERENCES: dict[str, Callable[[Mapping[str, Array], Array], Answer]] = {
    "linnos": linnos,
    "linnos+1": linnos,
    "linnos+2": linnos,
    "mllb": mllb,
    "kml": kml,
    "kleio": kleio,
}
