"""The same things asked of a duck elsewhere: over loopback, UDP and TCP, with a key and without."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from duck_numbers import number

import teal
from teal.duck import Server, messages
from teal.duck.key import make_key


def until(true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def free_port() -> int:
    """One that UDP and TCP have free now."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port = int(tcp.getsockname()[1])
            try:
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@pytest.fixture(scope="module", params=["udp", "tcp", "udp-key", "tcp-key"])
def far(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Callable[[], teal.Duck]]]:
    """A duck, and what connects to it."""
    transport, _, keyed = request.param.partition("-")
    key = make_key() if keyed else None
    try:
        server = Server(None, cache=False, memory=1 << 30, listen=f"127.0.0.1:{free_port()}", key=key)
    except teal.NotFound as error:
        pytest.skip(str(error))
    with server:
        assert server.listening is not None
        address = server.listening
        yield server, lambda: teal.Duck(address, key=key, tcp=transport == "tcp")


Far = tuple[Server, Callable[[], teal.Duck]]


def test_calls(far: Far, program: Path) -> None:
    with far[1]() as duck, duck.open(program, args="1MiB", ob="1MiB") as session:
        assert bytes(session.call(b"e hello").numpy()) == b"e hello"
        assert [number(session.call(b"c")) for _ in range(20)] == list(range(1, 21))
        big = np.frombuffer(b"e" + os.urandom(300_000), np.uint8)
        assert bytes(session.call(big).numpy()) == big.tobytes()
        call = session.prepare(32)
        call.args.numpy()[:] = ord("e")
        assert bytes(call().numpy()) == b"e" * 32
        with pytest.raises(teal.KernelFailed, match="returned -9"):
            session.call(b"n\x09")
        assert duck.ping() > 0
        assert session.statistics().restarts == 0


def test_nothing_crosses_the_wire_twice(far: Far, program: Path) -> None:
    x = np.random.default_rng(1).integers(0, 255, 3_000_000, np.uint8)
    with far[1]() as duck, duck.open(program) as session:
        session.map(x)
        assert number(session.call(b"s")) == int(x.sum(dtype=np.uint64))
        sent = duck.statistics()["client"]["sent_bytes"]
        assert sent >= x.nbytes
    with far[1]() as duck, duck.open(program) as session:
        session.map(x)
        assert number(session.call(b"s")) == int(x.sum(dtype=np.uint64))
        seen = duck.statistics()["client"]
        assert seen["sent_bytes"] == 0
        assert seen["skipped_bytes"] == x.nbytes + program.stat().st_size


def test_a_program_that_dies(far: Far, program: Path) -> None:
    with far[1]() as duck, duck.open(program, timeout="50ms") as session:
        session.map(b"\x05" * 10)
        with pytest.raises(teal.PeerDied, match="SIGSEGV"):
            session.call(b"x")
        assert number(session.call(b"s")) == 50  # opened anew, with its input buffer
        with pytest.raises(teal.DeadlineExceeded, match="bound of 50 ms"):
            session.call(b"f")
        assert number(session.call(b"c")) == 1
        assert session.statistics().restarts == 2


def test_futures_and_giving_up(far: Far, program: Path) -> None:
    with far[1]() as duck, duck.open(program) as session:
        future = session.submit(b"p\x05")
        assert number(future.result()) > 0
        with pytest.raises(teal.DeadlineExceeded, match="given up"):
            session.call(b"p\x64", timeout="1ms")
        until(lambda: not session._line.busy, "the program has returned")
        assert number(session.call(b"c")) == 1


def test_questions(far: Far, program: Path) -> None:
    with far[1]() as duck:
        info = duck.info()
        assert info["listening"] == duck.address
        assert info["vitals"]["cores"] > 0
        assert duck.statistics()["net"]["connections_now"] >= 1
        assert "duck" in duck.log()[1]
        with pytest.raises(teal.InvalidArgument, match="own machine"):
            duck._link.ask(messages.Stop())


_CLIENT = """
import sys, teal
duck = teal.Duck(sys.argv[1], key=sys.argv[2] or None)
session = duck.open(sys.argv[3])
session.submit(b"f")
print(session.number, session.pid, flush=True)
sys.stdin.read()
"""


def test_a_client_that_vanishes(program: Path) -> None:
    with Server(None, cache=False, memory=1 << 30, listen="127.0.0.1:0") as server:
        command = [sys.executable, "-c", _CLIENT, str(server.listening), "", str(program)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            client.stdout.readline()
            assert server.residents.numbers()["open"] == 1
            client.kill()
        until(lambda: server.residents.numbers()["open"] == 0, "its session has ended")


def test_a_duck_that_is_frozen_or_killed_mid_call(program: Path) -> None:
    port = free_port()
    command = [sys.executable, "-c", "from teal.cli import main; main()", "duck", "serve", "--name", f"f{os.getpid()}",
               "--cache", "none", "--memory", "1G", "--listen", f"127.0.0.1:{port}"]  # fmt: skip
    for how in (signal.SIGSTOP, signal.SIGKILL):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "is ready" in process.stdout.readline()
                with teal.Duck(f"127.0.0.1:{port}") as duck, duck.open(program) as session:
                    future = session.submit(b"f")
                    process.send_signal(how)
                    assert isinstance(future.exception(timeout=60), teal.PeerDied)
                    with pytest.raises(teal.PeerDied):
                        session.call(b"c")
            finally:
                process.kill()


def test_a_wrong_key(program: Path) -> None:
    key = make_key()
    try:
        server = Server(None, cache=False, memory=1 << 30, listen="127.0.0.1:0", key=key)
    except teal.NotFound as error:
        pytest.skip(str(error))
    with server:
        address = str(server.listening)
        for wrong in (make_key(), None):
            with pytest.raises((teal.InvalidArgument, teal.NotFound)):
                teal.Duck(address, key=wrong, timeout=2)
        with teal.Duck(address, key=key) as duck, duck.open(program) as session:
            assert number(session.call(b"c")) == 1


def test_what_the_cache_has_dropped_is_sent_again(far: Far, program: Path) -> None:
    with far[1]() as duck, duck.open(program) as session:
        x = os.urandom(100_000)
        session.map(x)
        session.map(None)
        session.close()
        duck.forget()
        with duck.open(program) as again:
            again.map(x)
            assert number(again.call(b"s")) == sum(x)


def test_who_lies_about_a_blob_is_thrown_out(far: Far) -> None:
    before = far[0].statistics()["net"]["blobs_bad"]

    def lie() -> None:
        with far[1]() as duck:
            duck._link.remote.put(bytes(32), bytes(500_000), 20 * 10**9)  # type: ignore[attr-defined]
            until(lambda: not duck.info(), "the duck hangs up")

    with pytest.raises((teal.PeerDied, teal.InvalidArgument), match="SHA-256 is not that of the 500000 bytes"):
        lie()
    until(lambda: far[0].statistics()["net"]["blobs_bad"] == before + 1, "it is counted")
    until(lambda: "is not what its SHA-256 says" in far[0].journal.read(-4096, 4096)[1], "it is said")
    assert not far[0].data.has("0" * 64)


def test_a_wrong_key_is_said_once(tmp_path: Path) -> None:
    key = make_key()
    try:
        server = Server(None, cache=False, memory=1 << 30, listen="127.0.0.1:0", key=key)
    except teal.NotFound as error:
        pytest.skip(str(error))
    with server:
        for _ in range(3):
            with pytest.raises(teal.InvalidArgument, match="wrong key"):
                teal.Duck(server.listening, key=make_key(), timeout=1)
        assert server.statistics()["net"]["wrong_key"] >= 3
        until(lambda: "under a wrong key" in server.journal.read(-4096, 4096)[1], "it is said")
        line = [one for one in server.journal.read(-4096, 4096)[1].splitlines() if "wrong key" in one]
        assert len(line) == 1
        assert "127.0.0.1:" in line[0]


def test_nobody_there() -> None:
    with pytest.raises((teal.NotFound, teal.PeerDied)):
        teal.Duck(f"127.0.0.1:{free_port()}", timeout=1)


def test_a_port_is_free_again_at_once(program: Path) -> None:
    port = free_port()
    for _ in range(3):
        with (
            Server(None, cache=False, memory=1 << 30, listen=f"127.0.0.1:{port}") as server,
            teal.Duck(str(server.listening)) as duck,
            duck.open(program) as session,
        ):
            assert number(session.call(b"c")) == 1
