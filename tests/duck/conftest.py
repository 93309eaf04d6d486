"""What the tests of ducks share: one duck for each module, and the program of the self-test.

It does what the first byte of its arguments says: e(cho) c(ount) n(egative) m(eet) s(um) i(b bytes) p(ause) l(og)
w(rite ib) x(crash) f(orever) q(uit) k(socket).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import teal
from teal import _core
from teal.duck import Server

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))  # for duck_numbers


@pytest.fixture(scope="session")
def program() -> Path:
    """The self-test's program, as it is installed."""
    return Path(_core.__file__).parent / "duck" / "bin" / "selftest.elf"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A duck in this process that keeps nothing on disk."""
    with Server(None, cache=False, memory=1 << 30) as server:
        yield server


@pytest.fixture
def duck(server: Server) -> Iterator[teal.Duck]:
    """A client of it."""
    with server.connect() as duck:
        yield duck
