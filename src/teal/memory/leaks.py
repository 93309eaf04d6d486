"""What is still on loan."""

from __future__ import annotations

from dataclasses import dataclass

from teal import _core


@dataclass(frozen=True, slots=True)
class Loan:
    """A tensor that keeps shared memory: its shape, dtype, bytes, and how many views of it are out."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    views: int


def leaks() -> list[Loan]:
    """Every tensor of this process that has not been released or collected. See docs/ownership.md."""
    return [Loan(t.shape, t.dtype, t.nbytes, t.exports) for t in _core.live_tensors()]
