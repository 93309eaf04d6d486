"""Running mean and deviation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from teal.errors import InvalidArgument
from teal.kernel.systems.running import Running


@given(st.lists(st.integers(0, 20), max_size=8), st.integers(0, 2**32))
def test_same_as_all_at_once(sizes: list[int], seed: int) -> None:
    samples = np.random.default_rng(seed).normal(50, 3, (sum(sizes), 5))
    running = Running(5)
    for part in np.split(samples, np.cumsum(sizes)):
        running.update(part)
    assert running.count == len(samples)
    if len(samples) > 1:
        np.testing.assert_allclose(running.mean, samples.mean(axis=0))
        np.testing.assert_allclose(running.deviation, samples.std(axis=0))


def test_what_never_changed_divides_by_one() -> None:
    running = Running(2)
    assert running.deviation.tolist() == [1, 1]
    running.update(np.array([[4.0, 1.0], [4.0, 3.0]]))
    assert running.deviation.tolist() == [1, 1]
    assert running.mean.tolist() == [4, 2]


@pytest.mark.parametrize("bad", [np.zeros((2, 3)), np.zeros(2), np.array([[np.nan, 0]])])
def test_wrong_samples(bad: np.ndarray) -> None:
    with pytest.raises(InvalidArgument, match=r"\$\.samples"):
        Running(2).update(bad)
