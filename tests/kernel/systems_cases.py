"""What the tests of the systems loads share: random weights and inputs, networks by width, and how close is close."""

from __future__ import annotations

import os

import numpy as np

from teal import _core
from teal.kernel.systems import LOADS, file, reference
from teal.kernel.systems.file import Array

_RUNGS = ("v2", "avx2", "avx512", "amx")
_WIDEST = _core.cpu_features()["isa_widest"]
ISAS = _RUNGS[: _RUNGS.index(_WIDEST) + 1][:3] if _WIDEST in _RUNGS else (_WIDEST,)  # that this machine runs
INTEGERS = [load for load in LOADS if load.startswith("linnos")]
FLOATS = [load for load in LOADS if load not in INTEGERS]


def weights(load: str, seed: int = 0, size: int | None = None) -> dict[str, Array]:
    """Random weights whose outputs are neither all alike nor out of bounds. size: of linnos' integers."""
    random = np.random.default_rng(seed)
    size = size if size is not None else {"linnos": 400, "linnos+1": 200, "linnos+2": 30}.get(load, 0)
    made: dict[str, Array] = {}
    for name, shape in LOADS[load].tensors.items():
        if load in INTEGERS:
            made[name] = random.integers(-size, size + 1, shape)
        elif name == "std":
            made[name] = random.uniform(0.1, 3, shape).astype(np.float32)
        else:
            made[name] = (
                random.normal(size=shape) / np.sqrt(4 if load == "kleio" and name == "w0" else shape[0])
            ).astype(np.float32)
    return made


def inputs(load: str, batch: int, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    if load == "kleio":
        return random.integers(-3, 640, (batch, 6)).astype(np.int32)
    if load in INTEGERS:
        return random.integers(0, 10, (batch, 31)).astype(np.uint8)
    return random.normal(size=(batch, LOADS[load].columns)).astype(np.float32)


def might_overflow(load: str, tensors: dict[str, Array]) -> bool:
    """Whether some sum of linnos could leave int64 for some bytes: in Python's own integers, which never overflow."""
    largest = 255
    for layer in range(len(tensors) // 2):
        w, b = tensors[f"w{layer}"].astype(object), tensors[f"b{layer}"].astype(object)
        bounds = abs(w).sum(axis=0) * largest + abs(b)
        largest = bounds.max()
        if largest > 2**63 - 1:
            return True
    return False


def network(load: str, tensors: dict[str, Array], isa: str = "") -> _core.SystemsNetwork:
    fd = file.seal(file.pack(load, tensors))
    try:
        return _core.SystemsNetwork(fd, isa)
    finally:
        os.close(fd)


def answer(net: _core.SystemsNetwork, load: str, x: Array) -> tuple[Array, Array]:
    """What the network says, in memory that is guarded by a canary on both sides."""
    known = LOADS[load]
    guard = 16
    scores = np.full((len(x) + 2 * guard, known.classes), 77, known.weights)
    verdict = np.full(len(x) + 2 * guard, 77, np.int32)
    net.run(x, scores[guard : guard + len(x)], verdict[guard : guard + len(x)])
    for array in (scores, verdict):
        assert (array[:guard] == 77).all()
        assert (array[guard + len(x) :] == 77).all()
    return scores[guard : guard + len(x)], verdict[guard : guard + len(x)]


def check(load: str, tensors: dict[str, Array], x: Array, scores: Array, verdict: Array) -> None:
    """Integers to the bit; floats to 1e-5 of the largest magnitude; a verdict may differ only between near equals."""
    wanted, wanted_verdict = reference.REFERENCES[load](tensors, x)
    assert (scores.dtype, verdict.dtype) == (LOADS[load].weights, np.int32)
    if load in INTEGERS:
        np.testing.assert_array_equal(scores, wanted)
        np.testing.assert_array_equal(verdict, wanted_verdict)
        return
    size = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-5 * size)
    differ = np.flatnonzero(verdict != wanted_verdict)
    if load == "mllb":
        assert np.all(np.abs(wanted[differ, 0] - 0.5) <= 1e-5 * size)
    else:
        near = wanted[differ, wanted_verdict[differ]] - wanted[differ, verdict[differ]]
        assert np.all(near <= 1e-5 * size)
