"""Trains digits.onnx and picks the images beside it: python examples/c/make_digits.py (needs scikit-learn and onnx).

Data: 1,797 handwritten digits of 8 x 8 pixels, 0 to 16 (E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten
Digits, UCI Machine Learning Repository, CC BY 4.0), as scikit-learn ships them. A perceptron 64-48-10 with softmax,
trained in NumPy with Adam on four fifths of them; the images are of the other fifth.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

HERE = Path(__file__).parent


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def train(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Weights and biases of both layers."""
    sizes = (64, 48, 10)
    p = [
        rng.normal(0, (2 / sizes[0]) ** 0.5, sizes[:2]),
        np.zeros(48),
        rng.normal(0, (2 / 48) ** 0.5, sizes[1:]),
        np.zeros(10),
    ]
    m, v = [np.zeros_like(w) for w in p], [np.zeros_like(w) for w in p]
    for step in range(1, 3001):
        batch = rng.integers(len(x), size=64)
        hidden = np.maximum(x[batch] @ p[0] + p[1], 0)
        error = softmax(hidden @ p[2] + p[3])
        error[np.arange(64), y[batch]] -= 1
        back = error @ p[2].T * (hidden > 0)
        for i, g in enumerate((x[batch].T @ back, back.sum(0), hidden.T @ error, error.sum(0))):
            g = g / 64 + 1e-4 * p[i]
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g * g
            p[i] = p[i] - 0.003 * (m[i] / (1 - 0.9**step)) / ((v[i] / (1 - 0.999**step)) ** 0.5 + 1e-8)
    return p


def save(p: list[np.ndarray]) -> None:
    names = ("w1", "b1", "w2", "b2")
    nodes = [
        helper.make_node("Gemm", ["pixels", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["z"]),
        helper.make_node("Softmax", ["z"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in zip(names, p, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    (HERE / "digits.onnx").write_bytes(model.SerializeToString())


def main() -> None:
    data = load_digits()
    rng = np.random.default_rng(5)
    order = rng.permutation(len(data.target))
    x, y = data.data[order] / 16, data.target[order]
    cut = len(x) * 4 // 5
    p = train(x[:cut], y[:cut], rng)
    answers = np.argmax(np.maximum(x[cut:] @ p[0] + p[1], 0) @ p[2] + p[3], axis=1)
    print(f"{np.mean(answers == y[cut:]):.3f} of {len(answers)} images it has not seen are right")
    save(p)
    for digit in (2, 7):
        pixels = np.rint(x[cut:][y[cut:] == digit][0] * 16).astype(int).reshape(8, 8)
        rows = "\n".join(" ".join(map(str, row)) for row in pixels)
        (HERE / f"digit-{digit}.pgm").write_text(f"P2\n# a handwritten {digit}\n8 8\n16\n{rows}\n")


if __name__ == "__main__":
    main()
