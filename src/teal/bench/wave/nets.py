"""The longer of the two ONNX models: a perceptron of square layers, written as `data/make_mlp.py` writes its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from teal.bench.data.make_mlp import IR_VERSION, OPSET, field, node, tensor, value_info

WIDTH, LAYERS = 1024, 4
SEED = 21


def write(path: Path) -> None:
    """float32, input x and output y of (batch, WIDTH); LAYERS products, each with a ReLU. About 0.4 ms a row."""
    numbers = np.random.default_rng(SEED)
    graph, before = b"", "x"
    for layer in range(LAYERS):
        after = "y" if layer == LAYERS - 1 else f"r{layer}"
        graph += field(1, node("MatMul", [before, f"w{layer}"], f"m{layer}"))
        graph += field(1, node("Relu", [f"m{layer}"], after))
        before = after
    graph += field(2, "square")
    for layer in range(LAYERS):
        weights = numbers.uniform(-1, 1, (WIDTH, WIDTH)).astype("<f4") * np.float32((3 / WIDTH) ** 0.5)
        graph += field(5, tensor(f"w{layer}", (WIDTH, WIDTH), weights.tobytes()))
    graph += field(11, value_info("x", WIDTH)) + field(12, value_info("y", WIDTH))
    path.write_bytes(field(1, IR_VERSION) + field(2, "teal") + field(7, graph) + field(8, field(2, OPSET)))
