"""Every load, at every width of the vector unit, against the NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import systems_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st

from teal import _core
from teal.errors import InvalidArgument
from teal.kernel.systems import LOADS, reference

BATCHES = [*range(36), 47, 63, 64, 65, 129, 1000]
SLOW_BATCHES = [*range(10), 12, 13, 63, 64, 65, 71]  # kleio

isas = pytest.mark.parametrize("isa", cases.ISAS)


@isas
@pytest.mark.parametrize("load", LOADS)
def test_every_batch(load: str, isa: str) -> None:
    tensors = cases.weights(load)
    net = cases.network(load, tensors, isa)
    for batch in SLOW_BATCHES if load == "kleio" else BATCHES:
        x = cases.inputs(load, batch, seed=batch)
        cases.check(load, tensors, x, *cases.answer(net, load, x))


@isas
@pytest.mark.parametrize("load", ["linnos", "mllb", "kml"])
def test_huge_batch(load: str, isa: str) -> None:
    tensors = cases.weights(load)
    x = cases.inputs(load, 65_537)
    cases.check(load, tensors, x, *cases.answer(cases.network(load, tensors, isa), load, x))


@isas
@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(cases.INTEGERS), st.integers(0, 2**32), st.integers(0, 40), st.sampled_from([1, 9, 255]), st.data()
)
def test_integers_are_exact(isa: str, load: str, seed: int, batch: int, largest: int, data: Any) -> None:
    """Whatever the weights: narrow, too wide for int16, wide in one layer only; and whatever the bytes."""
    random = np.random.default_rng(seed)
    most = {"linnos": 10**9, "linnos+1": 10**6, "linnos+2": 2000}[load]
    tensors = cases.weights(load, seed, size=data.draw(st.integers(0, 60)))
    for name in data.draw(st.sets(st.sampled_from(sorted(tensors)))):
        size = data.draw(st.sampled_from([100, most // 10, most]))
        tensors[name] = random.integers(-size, size + 1, tensors[name].shape)
    x = random.integers(0, largest + 1, (batch, 31)).astype(np.uint8)
    if cases.might_overflow(load, tensors):
        with pytest.raises(InvalidArgument, match="might leave the range of int64"):
            cases.network(load, tensors, isa)
        return
    net = cases.network(load, tensors, isa)
    cases.check(load, tensors, x, *cases.answer(net, load, x))


def extreme(load: str, value: int, unit: int) -> dict[str, Any]:
    tensors = {name: np.zeros(shape, np.int64) for name, shape in LOADS[load].tensors.items()}
    tensors["w0"][:, unit] = value
    tensors["w1"][unit, :] = [1, -1] if load == "linnos" else 0
    return tensors


@isas
@pytest.mark.parametrize("value", [32767, -32767, 32768, -32768, (2**63 - 1) // (31 * 255)])
def test_edge_of_the_narrow_types(isa: str, value: int) -> None:
    tensors = extreme("linnos", value, unit=255)
    x = np.full((5, 31), 255, np.uint8)
    cases.check("linnos", tensors, x, *cases.answer(cases.network("linnos", tensors, isa), "linnos", x))


@isas
@pytest.mark.parametrize("row", [65_537, 65_538, 65_539])
def test_edge_of_the_narrow_sums(isa: str, row: int) -> None:
    """Σ|w|·32767 at, just below and just above int32: the pieces' sums are full, none may wrap."""
    tensors = {name: np.zeros(shape, np.int64) for name, shape in LOADS["linnos"].tensors.items()}
    tensors["b0"][:] = 32767 + (32767 << 15)  # both pieces of every activation full
    share, rest = divmod(row, 256)
    tensors["w1"][:, 0] = share + (np.arange(256) < rest)
    tensors["w1"][:, 1] = -tensors["w1"][:, 0]
    x = cases.inputs("linnos", 17)
    cases.check("linnos", tensors, x, *cases.answer(cases.network("linnos", tensors, isa), "linnos", x))


def test_one_more_would_overflow() -> None:
    most = (2**63 - 1) // (31 * 255)
    assert (most + 1) * 31 * 255 > 2**63 - 1
    cases.network("linnos", extreme("linnos", most, 3))
    with pytest.raises(InvalidArgument, match=r"tensor 'w0': unit 3 might leave the range of int64"):
        cases.network("linnos", extreme("linnos", most + 1, 3))


@pytest.mark.parametrize("load", cases.INTEGERS)
def test_linnos_agrees_between_widths(load: str) -> None:
    tensors = cases.weights(load, 5)
    x = cases.inputs(load, 100)
    answers = [cases.answer(cases.network(load, tensors, isa), load, x) for isa in cases.ISAS]
    for scores, verdict in answers[1:]:
        np.testing.assert_array_equal(scores, answers[0][0])
        np.testing.assert_array_equal(verdict, answers[0][1])


@isas
@pytest.mark.parametrize("load", ["mllb", "kml"])
def test_what_is_no_number(load: str, isa: str) -> None:
    tensors = cases.weights(load)
    net = cases.network(load, tensors, isa)
    for bad in (np.nan, np.inf, -np.inf):
        x = cases.inputs(load, 40)
        x[::3, 2] = bad
        scores, verdict = cases.answer(net, load, x)
        with np.errstate(invalid="ignore"):
            wanted, wanted_verdict = reference.REFERENCES[load](tensors, x)
        np.testing.assert_array_equal(np.isfinite(scores), np.isfinite(wanted))
        np.testing.assert_array_equal(verdict[::3], wanted_verdict[::3])
        clean = np.arange(40) % 3 != 0
        np.testing.assert_allclose(scores[clean], wanted[clean], atol=1e-5 * max(1, np.abs(wanted[clean]).max()))


@isas
def test_page_that_is_none(isa: str) -> None:
    """Out of range, at the very ends of int32 too, is no access; never an access out of bounds."""
    tensors = cases.weights("kleio")
    net = cases.network("kleio", tensors, isa)
    x = np.full((3, 6), -1, np.int32)
    x[1] = [2**31 - 1, -(2**31), 621, 620, 0, -1]
    x[2] = 620
    scores, verdict = cases.answer(net, "kleio", x)
    cases.check("kleio", tensors, x, scores, verdict)
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)


@isas
def test_large_logits(isa: str) -> None:
    """Saturated gates and far apart logits stay finite."""
    tensors = {name: (40 * value).astype(np.float32) for name, value in cases.weights("kleio").items()}
    x = cases.inputs("kleio", 9)
    scores, verdict = cases.answer(cases.network("kleio", tensors, isa), "kleio", x)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)
    assert ((verdict >= 0) & (verdict < 621)).all()


@pytest.mark.parametrize(
    ("x", "scores", "verdict"),
    [
        (np.zeros((2, 15)), np.zeros((2, 1), np.float32), np.zeros(2, np.int32)),
        (np.zeros((2, 14), np.float32), np.zeros((2, 1), np.float32), np.zeros(2, np.int32)),
        (np.zeros((2, 15), np.float32), np.zeros((3, 1), np.float32), np.zeros(2, np.int32)),
        (np.zeros((2, 15), np.float32), np.zeros((2, 1), np.float32), np.zeros(2, np.int64)),
        (np.zeros(15, np.float32), np.zeros((15, 1), np.float32), np.zeros(15, np.int32)),
    ],
)
def test_wrong_arrays(x: Any, scores: Any, verdict: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"(x|scores|verdict): not a contiguous array of the load's"):
        cases.network("mllb", cases.weights("mllb")).run(x, scores, verdict)


def test_wrong_isa() -> None:
    with pytest.raises(InvalidArgument, match="isa: 'sse9', expected"):
        cases.network("mllb", cases.weights("mllb"), "sse9")


def test_measure() -> None:
    net = cases.network("mllb", cases.weights("mllb"), "")
    times = net.measure(cases.inputs("mllb", 4), np.zeros((4, 1), np.float32), np.zeros(4, np.int32), 7)
    assert len(times) == 7
    assert min(times) > 0
    assert isinstance(net, _core.SystemsNetwork)
