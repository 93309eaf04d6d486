"""The reference itself, against the definition written out number by number, and by hand where that is short."""

from __future__ import annotations

import math

import numpy as np
import systems_cases as cases

from teal.kernel.systems import LOADS, reference


def test_shapes_are_the_published_ones() -> None:
    """Multiply-adds an item, without biases: 8,448, 73,984, 139,520, 160, 170 and 8.7 million."""
    macs = {load: sum(math.prod(s) for n, s in known.tensors.items() if n[0] in "wu") for load, known in LOADS.items()}
    assert [macs[load] for load in ("linnos", "linnos+1", "linnos+2")] == [8_448, 73_984, 139_520]
    assert (macs["mllb"], macs["kml"]) == (160, 170)
    shapes = LOADS["kleio"].tensors
    assert 6 * sum(math.prod(shapes[n]) for n in ("w0", "u0", "w1", "u1")) + math.prod(shapes["w2"]) == 8_692_992


def test_linnos_by_hand() -> None:
    weights = {name: np.zeros(shape, np.int64) for name, shape in LOADS["linnos"].tensors.items()}
    weights["w0"][0, 0], weights["w0"][1, 1] = 3, -2
    weights["b0"][1] = 5
    weights["w1"][0], weights["w1"][1] = [1, 10], [-4, 0]
    weights["b1"][:] = [7, -3]
    x = np.zeros((3, 31), np.uint8)
    x[1, 0] = x[2, 1] = 9
    scores, verdict = reference.linnos(weights, x)
    # hidden: (0, 5), (27, 5), (0, -13 → 0)
    assert scores.tolist() == [[7 - 20, -3], [7 + 27 - 20, -3 + 270], [7, -3]]
    assert verdict.tolist() == [1, 1, 0]


def test_argmax_takes_the_first_and_no_nan() -> None:
    nan = np.nan
    scores = np.array([[1, 1, 0], [0, 2, 2], [0, nan, -1], [nan, 3, 4], [nan, nan, nan]], np.float32)
    assert reference.argmax(scores).tolist() == [0, 1, 0, 0, 0]


def test_kleio_one_number_at_a_time() -> None:
    """The second unit of the first layer after two steps, from the textbook's equations in Python floats."""
    weights = {name: value.astype(np.float64) for name, value in cases.weights("kleio").items()}
    pages = [5, 17]

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    h, c = [0.0] * 256, [0.0] * 256
    for page in pages:
        z = [
            weights["w0"][page, j] + weights["b0"][j] + sum(h[k] * weights["u0"][k, j] for k in range(256))
            for j in range(1024)
        ]
        c = [sigmoid(z[256 + j]) * c[j] + sigmoid(z[j]) * math.tanh(z[512 + j]) for j in range(256)]
        h = [sigmoid(z[768 + j]) * math.tanh(c[j]) for j in range(256)]
    hot = reference.one_hot(np.array([pages], np.int32), 621)
    tensors = cases.weights("kleio")
    hidden = reference.lstm(hot, tensors["w0"], tensors["u0"], tensors["b0"])
    np.testing.assert_allclose(hidden[0, 1], h, atol=1e-5)


def test_one_hot_out_of_range() -> None:
    hot = reference.one_hot(np.array([[0, -1, 620, 621, 3, 3]], np.int32), 621)
    assert hot.sum(axis=2).tolist() == [[1, 0, 1, 0, 1, 1]]
