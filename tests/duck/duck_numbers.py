"""What the program of the self-test answers with."""

from __future__ import annotations

import teal


def number(answer: teal.Tensor) -> int:
    """One 64-bit number."""
    assert answer.nbytes == 8
    return int.from_bytes(bytes(answer.numpy()), "little")
