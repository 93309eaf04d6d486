"""Ranking and merging."""

from __future__ import annotations

import numpy as np
import pytest

from teal.demo.search import merge, rank

VECTORS = np.array([[1, 0], [0, 1], [0.6, 0.8], [1, 0]], np.float32)


def test_best_first_and_equal_ones_in_their_order() -> None:
    hits = rank(np.array([1, 0], np.float32), VECTORS, 3)
    assert [place for place, _ in hits] == [0, 3, 2]
    assert hits[2][1] == pytest.approx(0.6)


@pytest.mark.parametrize(("top", "count"), [(0, 0), (-1, 0), (2, 2), (99, 4)])
def test_top_is_a_bound(top: int, count: int) -> None:
    assert len(rank(VECTORS[0], VECTORS, top)) == count


def test_nothing_to_rank() -> None:
    assert rank(VECTORS[0], np.empty((0, 2), np.float32), 3) == []


def test_nan_comes_last() -> None:
    vectors = np.array([[np.nan, 0], [-1, 0]], np.float32)
    assert [place for place, _ in rank(VECTORS[0], vectors, 2)] == [1, 0]


def test_merge_orders_and_drops_repeated_texts() -> None:
    texts = ["a", "b", "a", "c"]
    assert merge([[(0, 0.5), (2, 0.9)], [(3, 0.7), (1, 0.1)]], texts, 3) == [(2, 0.9), (3, 0.7), (1, 0.1)]
    assert merge([], texts, 3) == []
