"""Calls that go from a client straight to a program's box, past its duck; and those that may not, which say why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from duck_numbers import number

import teal
from teal.duck import Server
from teal.duck.key import make_key
from teal.duck.session import Session
from teal.duck.yards import kvm_missing


@pytest.fixture(scope="module", params=["clear", "key"])
def far(request: pytest.FixtureRequest) -> Iterator[tuple[Server, str | None]]:
    """A duck that listens, and its key."""
    key = make_key() if request.param == "key" else None
    try:
        server = Server(None, cache=False, memory=1 << 30, listen="127.0.0.1:0", key=key)
    except teal.NotFound as error:
        pytest.skip(str(error))
    with server:
        yield server, key


def warm(session: Session) -> int:
    """Calls it until the box was heard. Returns what its counter says by then."""
    count = 0
    while not session.statistics().direct_calls:
        count += 1
        assert number(session.call(b"c")) == count
        assert count < 100_000
    return count


def test_direct_calls_are_counted(far: tuple[Server, str | None], program: Path) -> None:
    server, key = far
    with teal.Duck(server.listening, key=key) as duck, duck.open(program) as session:
        if session.indirect:
            pytest.skip(session.indirect)
        count = warm(session)
        loop = duck.statistics()["net"]["calls"]
        for _ in range(50):
            count += 1
            assert number(session.call(b"c")) == count
        prepared = session.prepare(1)
        prepared.args.numpy()[:] = ord("c")
        for _ in range(50):
            count += 1
            assert number(prepared()) == count
        seen = duck.statistics()
        assert seen["net"]["calls"] - loop <= 4  # a busy machine may be slow to answer: then the duck is asked
        assert seen["net"]["directs"] >= 1
        assert seen["client"]["direct_calls"] == session.statistics().direct_calls >= 97
        (row,) = [row for row in duck.info()["sessions"] if row["session"] == session.number]
        assert row["direct_calls"] >= 97
        assert row["indirect"] == ""


def test_long_arguments_and_results(far: tuple[Server, str | None], program: Path) -> None:
    server, key = far
    with teal.Duck(server.listening, key=key) as duck, duck.open(program, args="1MiB", ob="2MiB") as session:
        if session.indirect:
            pytest.skip(session.indirect)
        count = warm(session)
        x = np.arange(100_000, dtype=np.uint8)
        passed = duck.statistics()["client"]["direct_passed"]
        assert bytes(session.call(b"e" + x.tobytes())) == b"e" + x.tobytes()
        assert duck.statistics()["client"]["direct_passed"] == passed + 1
        for _ in range(3):
            count += 1
            assert number(session.call(b"c")) == count
        assert bytes(session.call(b"e" + bytes(range(200)))) == b"e" + bytes(range(200))


def test_the_end_of_a_program_is_told(far: tuple[Server, str | None], program: Path) -> None:
    server, key = far
    with teal.Duck(server.listening, key=key) as duck, duck.open(program, timeout="200ms") as session:
        if session.indirect:
            pytest.skip(session.indirect)
        warm(session)
        with pytest.raises(teal.PeerDied, match="SIGSEGV"):
            session.call(b"x")
        assert number(session.call(b"c")) == 1  # opened anew, with a path of its own
        before = session.statistics().direct_calls
        while session.statistics().direct_calls == before:
            session.call(b"c")
        with pytest.raises(teal.DeadlineExceeded, match="bound of 200 ms"):
            session.call(b"f")
        assert session.statistics().restarts == 1


def test_mapping_beside_direct_calls(far: tuple[Server, str | None], program: Path) -> None:
    server, key = far
    with teal.Duck(server.listening, key=key) as duck, duck.open(program) as session:
        session.call(b"c")
        for value in (1, 2, 3):
            session.map(np.full(4096, value, np.uint8))
            for _ in range(20):
                assert number(session.call(b"s")) == 4096 * value


def test_over_tcp_there_are_none(far: tuple[Server, str | None], program: Path) -> None:
    server, key = far
    with teal.Duck(server.listening, key=key, tcp=True) as duck, duck.open(program) as session:
        assert session.indirect == "the client came over TCP"
        for i in range(1, 20):
            assert number(session.call(b"c")) == i
        assert session.statistics().direct_calls == 0


def test_a_duck_may_refuse_them(program: Path) -> None:
    with Server(None, cache=False, memory=1 << 30, listen="127.0.0.1:0", direct=False) as server:
        with teal.Duck(server.listening) as duck, duck.open(program) as session:
            assert "--no-direct" in session.indirect
            for i in range(1, 20):
                assert number(session.call(b"c")) == i
            assert session.statistics().direct_calls == 0
            assert duck.info()["direct"] is False
        with server.connect() as near, near.open(program) as session:
            session.call(b"c")


def test_guests_have_none(far: tuple[Server, str | None], program: Path) -> None:
    if why := kvm_missing():
        pytest.skip(why)
    server, key = far
    with teal.Duck(server.listening, key=key) as duck, duck.open(program, sandbox="kvm") as session:
        assert session.indirect == "not with sandbox kvm"
        assert number(session.call(b"c")) == 1
        assert session.statistics().direct_calls == 0
