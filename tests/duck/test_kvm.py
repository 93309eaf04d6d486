"""A duck whose boxes are guests: everything as with processes. Skips where no guest can run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from duck_numbers import number

import teal
from teal import _core
from teal.duck import Server
from teal.duck.selftest import selftest

probed = _core.kvm_probe()
guests = pytest.mark.skipif(not probed["available"], reason=f"no guest can run here: {probed['reason']}")


@pytest.fixture(scope="module")
def duck() -> Iterator[teal.Duck]:
    """A client of a duck of guests that keeps nothing on disk."""
    with Server(None, cache=False, memory=1 << 30, sandbox="kvm") as server, server.connect() as duck:
        yield duck


@guests
def test_calls_state_and_input(duck: teal.Duck, program: Path) -> None:
    with duck.open(program, cores=2) as session:
        assert session.sandbox == "kvm"
        assert bytes(session.call(b"e hello").numpy()) == b"e hello"
        assert [number(session.call(b"c")) for _ in range(3)] == [1, 2, 3]
        weights = np.arange(1 << 18, dtype=np.uint64)
        session.map(weights)
        assert number(session.call(b"s")) == int(weights.view(np.uint8).sum())


@guests
def test_a_program_that_dies_takes_only_its_session(duck: teal.Duck, program: Path) -> None:
    with duck.open(program) as other, duck.open(program) as session:
        with pytest.raises(teal.PeerDied):
            session.call(b"x")
        assert number(other.call(b"c")) == 1


@guests
def test_the_selftest_of_a_duck_of_guests() -> None:
    with Server(None, cache=False, memory=1 << 30, sandbox="kvm") as server:
        results = selftest(server)
    assert [result for result in results if result.outcome == "FAIL"] == []
    assert any(result.name.startswith("kvm: ") for result in results)


def test_where_no_guest_can_run_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "kvm_probe", lambda: {"available": False, "text": "", "reason": "/dev/kvm: gone"})
    with pytest.raises(teal.NotFound, match="no KVM to run guests: /dev/kvm: gone"):
        Server(None, cache=False, memory=1 << 30, sandbox="kvm")
