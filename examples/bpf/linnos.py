"""LinnOS's network: trained on a trace of reads, and run as a resident function.

31 digits → 256, ReLU → 2, argmax; integer weights, as it runs in a kernel. ``train`` fits them to what was measured a
moment ago on this very disk.
"""

import os

import numpy as np

import teal

HIDDEN = 256
SCALE = 1024  # weights are integers in units of 1/1024


def train(digits, slow, rounds=2000, seed=1):
    """Weights for (n, 31) digits and n booleans: gradient descent with momentum, both classes weighing the same."""
    generator = np.random.default_rng(seed)
    x = digits.astype(np.float32)
    scale = x.std(axis=0) + 0.5
    x = x / scale
    w0 = generator.normal(0, 0.2, (31, HIDDEN)).astype(np.float32)
    w1 = generator.normal(0, 0.1, (HIDDEN, 2)).astype(np.float32)
    b0, b1 = np.zeros(HIDDEN, np.float32), np.zeros(2, np.float32)
    parameters = [w0, b0, w1, b1]
    speeds = [np.zeros_like(p) for p in parameters]
    weight = np.where(slow, 0.5 / max(slow.mean(), 1e-3), 0.5 / max(1 - slow.mean(), 1e-3)).astype(np.float32)
    target = np.eye(2, dtype=np.float32)[slow.astype(int)]
    for _ in range(rounds):
        batch = generator.integers(0, len(x), 256)
        h = np.maximum(x[batch] @ w0 + b0, 0)
        scores = h @ w1 + b1
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = (odds / odds.sum(axis=1, keepdims=True) - target[batch]) * weight[batch, None] / len(batch)
        back = (error @ w1.T) * (h > 0)
        gradients = [x[batch].T @ back, back.sum(axis=0), h.T @ error, error.sum(axis=0)]
        for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
            speed *= 0.9
            speed -= 0.05 * gradient
            parameter += speed
    whole = {"w0": w0 / scale[:, None], "b0": b0, "w1": w1, "b1": b1 * SCALE}
    return {name: np.rint(value * SCALE).astype(np.int64) for name, value in whole.items()}


class Network:
    """The weights that $LINNOS_WEIGHTS names, resident in a worker."""

    def __init__(self):
        self.weights = dict(np.load(os.environ["LINNOS_WEIGHTS"]))

    @teal.signature(
        inputs={"x": ("uint8", ("batch", 31))},
        outputs={"scores": ("int64", ("batch", 2)), "verdict": ("int32", ("batch",))},
        pure=True,
    )
    def __call__(self, x):
        w = self.weights
        hidden = np.maximum(x.astype(np.int64) @ w["w0"] + w["b0"], 0)
        scores = hidden @ w["w1"] + w["b1"]
        return scores, scores.argmax(axis=1).astype(np.int32)
