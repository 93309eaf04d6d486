"""Programs inside the duck's own process: only where it is allowed, one at a time, and the same calls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from duck_numbers import number

import teal
from teal.duck import Server


@pytest.fixture(scope="module")
def trusting() -> Iterator[Server]:
    with Server(None, cache=False, memory=1 << 30, sandbox="inline", trust_programs=True) as server:
        yield server


def opened(duck: teal.Duck, program: Path) -> teal.duck.session.Session:
    """The one before has left a moment after its end."""
    end = time.monotonic() + 20
    while True:
        try:
            return duck.open(program)
        except teal.Busy:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_it_has_to_be_allowed(program: Path) -> None:
    with pytest.raises(teal.InvalidArgument, match="--trust-programs"):
        Server(None, cache=False, memory=1 << 30, sandbox="inline")
    with (
        Server(None, cache=False, memory=1 << 30) as server,
        server.connect() as duck,
        pytest.raises(teal.InvalidArgument, match="--trust-programs"),
    ):
        duck.open(program, sandbox="inline")


def test_calls(trusting: Server, program: Path) -> None:
    with trusting.connect() as duck:
        with opened(duck, program) as session:
            assert session.sandbox == "inline"
            assert session.pid == os.getpid()
            for i in range(1, 200):
                assert number(session.call(b"c")) == i
            x = duck.empty(1 << 16)
            x.numpy()[:] = 3
            session.map(x)
            assert number(session.call(b"s")) == 3 << 16
            with pytest.raises(teal.Busy):
                duck.open(program)
            (guard,) = [one for one in duck.info()["guards"] if one["sandbox"] == "inline"]
            assert not guard["used"]
        with opened(duck, program) as session:
            assert number(session.call(b"c")) == 1  # from zero
        assert np.arange(3).sum() == 3  # this process is as it was


def test_what_it_cannot_do(trusting: Server, program: Path) -> None:
    with trusting.connect() as duck:
        with pytest.raises(teal.InvalidArgument, match="cores"):
            duck.open(program, cores=2)
        with pytest.raises(teal.InvalidArgument, match="needs a sandbox"):
            duck.judge(program)
        with duck.open(program, sandbox="process") as session:
            assert number(session.call(b"c")) == 1
            assert session.pid != os.getpid()


def test_not_for_others(program: Path) -> None:
    with (
        Server(None, cache=False, memory=1 << 30, listen="127.0.0.1:0", trust_programs=True) as server,
        teal.Duck(server.listening) as duck,
        pytest.raises(teal.InvalidArgument, match="own machine"),
    ):
        duck.open(program, sandbox="inline")


_CRASH = """
import sys, teal
from teal.duck import Server
server = Server(None, cache=False, memory=1 << 30, sandbox="inline", trust_programs=True)
with server, server.connect() as duck:
    duck.open(sys.argv[1]).call(b"x")
"""


def test_a_crash_takes_the_duck(program: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _CRASH, str(program)], capture_output=True, timeout=60, check=False)
    assert ended.returncode == -11
