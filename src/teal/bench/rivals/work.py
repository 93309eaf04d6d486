"""The work that every contender does, so that all do the same: payload sizes, model inputs, session settings.

Plain bytes from the standard library: this file is imported under the rivals' python as well as under Teal's.
"""

from __future__ import annotations

import socket
from array import array

SMALL = 64  # bytes: one cache line
LARGE = 600 * 1024  # bytes: an image of 224 x 224 x 3 in float32, rounded up to whole pages
SIZES = {"64 B": SMALL, "600 KB": LARGE}

MLP_IN = 64  # float32 in, one row
MLP_OUT = 8  # float32 out, one row
TOKENS = 128  # of the sentence-embedding model
FIRST_ID, ID_STEP, ID_RANGE = 1037, 97, 28000  # ordinary words of its vocabulary, away from the special tokens


def payload(nbytes: int) -> bytes:
    """Bytes that are not all alike, so that an answer of zeros is not taken for an echo."""
    return bytes(range(1, 252)) * (nbytes // 251) + bytes(range(1, nbytes % 251 + 1))


def mlp_input() -> bytes:
    """One row of MLP_IN float32 values in [-1, 1)."""
    return array("f", [(i * 37 % MLP_IN) / (MLP_IN / 2) - 1 for i in range(MLP_IN)]).tobytes()


def token_ids() -> list[int]:
    """TOKENS token numbers, the same in every run."""
    return [FIRST_ID + i * ID_STEP % ID_RANGE for i in range(TOKENS)]


def free_port() -> int:
    """A TCP port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
