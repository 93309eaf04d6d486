"""Ranking by meaning: the passages whose vectors point most nearly where the question's points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from teal.demo.embedder import Vectors

Hit = tuple[int, float]  # (number of the passage, cosine with the question, -1 to 1)


def rank(question: Vectors, vectors: Vectors, top: int) -> list[Hit]:
    """The `top` best rows of `vectors` (n, width) for `question` (width), best first; equal scores keep their order.

    Both are unit vectors, so the dot product is the cosine. Rows with NaN come last.
    """
    scores = np.nan_to_num(vectors @ question, nan=-np.inf)
    order = np.argsort(-scores, kind="stable")[: max(top, 0)]
    return [(int(place), float(scores[place])) for place in order]


def merge(rankings: Iterable[Sequence[Hit]], texts: Sequence[str], top: int) -> list[Hit]:
    """The `top` best of several rankings over the same numbering; of passages with one text only the first is kept."""
    merged = sorted((hit for ranking in rankings for hit in ranking), key=lambda hit: (-hit[1], hit[0]))
    seen: set[str] = set()
    best: list[Hit] = []
    for place, score in merged:
        if texts[place] not in seen and len(best) < top:
            seen.add(texts[place])
            best.append((place, score))
    return best
