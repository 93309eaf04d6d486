"""What a client may say to a duck that makes no sense: it hurts nobody, and descriptors of the duck do not grow."""

from __future__ import annotations

import array
import contextlib
import os
import random
import socket
from pathlib import Path

import msgspec
import pytest
from duck_numbers import number

import teal
from teal.duck import Server, messages
from teal.host import address as addresses
from teal.host import wire

HELLO = messages.Hello(messages.PROTOCOL, "0", 1)


def raw(server: Server) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(20)
    sock.connect(addresses.socket_address(server.address))
    return sock


def said(sock: socket.socket, data: bytes, fds: list[int] | None = None) -> wire.Reply | None:
    """The answer, or None when the connection has ended."""
    with contextlib.suppress(OSError):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sock.sendmsg([data], rights)
    try:
        got = sock.recv(1 << 18)
    except ConnectionError:
        return None
    return wire.decode_reply(got) if got else None


def encoded(body: object, number: int = 1) -> bytes:
    return msgspec.msgpack.encode({"id": number, "body": body})


def test_garbage_ends_its_own_connection(server: Server, program: Path) -> None:
    chance = random.Random(7)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        with raw(server) as sock:
            said(sock, chance.randbytes(chance.randrange(1, 300)), [0] * chance.randrange(4))
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    with server.connect() as duck, duck.open(program) as session:
        assert number(session.call(b"c")) == 1


def test_nothing_without_a_hello(server: Server) -> None:
    with raw(server) as sock:
        reply = said(sock, encoded(messages.Info()))
        assert reply is not None
        assert reply.error is not None
        assert "hello" in reply.error.message
        assert said(sock, encoded(messages.Info())) is None


def test_another_version_is_told_so(server: Server) -> None:
    with raw(server) as sock:
        reply = said(sock, encoded(messages.Hello(99, "9.9", 1)))
        assert reply is not None
        assert reply.error is not None
        assert reply.error.kind == "VersionMismatch"


@pytest.mark.parametrize(
    "body",
    [
        {"t": "open", "program": "0" * 63},
        {"t": "open", "program": "0" * 64, "cores": 0},
        {"t": "open", "program": "0" * 64, "ob": -1},
        {"t": "open", "program": "0" * 64, "ob": 1 << 60},
        {"t": "open", "program": "0" * 64, "timeout_ns": -5},
        {"t": "open", "program": "0" * 64, "surprise": 1},
        {"t": "map", "session": 1 << 63},
        {"t": "map", "session": 1, "segment": 1 << 40},
        {"t": "put", "kind": "data", "nbytes": 1 << 50},
        {"t": "put", "kind": "nonsense", "nbytes": 1},
        {"t": "has", "kind": "data", "digests": ["x"]},
        {"t": "judge", "program": "0" * 64, "time_ns": 0},
        {"t": "log", "most": 1 << 40},
        {"t": "close", "session": -1},
        {"t": "nonsense"},
        {},
        3,
    ],
    ids=str,
)
def test_messages_that_make_no_sense(server: Server, body: object) -> None:
    with raw(server) as sock:
        assert said(sock, encoded(HELLO)) is not None
        reply = said(sock, encoded(body, 2))
        assert reply is not None
        assert reply.error is not None
        assert reply.error.kind == "InvalidArgument"
        again = said(sock, encoded(messages.Has("data", []), 3))
        assert again is not None
        assert again.body == []


def test_files_that_are_not_what_they_should_be(server: Server) -> None:
    with raw(server) as sock:
        said(sock, encoded(HELLO))
        short = os.memfd_create("short")
        os.write(short, b"abc")
        reader, writer = os.pipe()
        try:
            for fd, nbytes in ((short, 1000), (short, 1 << 40), (reader, 10), (reader, 1 << 40)):
                reply = said(sock, encoded(messages.Put("data", nbytes), 2), [fd])
                assert reply is not None
                assert reply.error is not None
            reply = said(sock, encoded(messages.Put("data", 3, "0" * 64), 2), [short])
            assert reply is not None
            assert reply.error is not None
            assert "not what was announced" in reply.error.message
        finally:
            for fd in (short, reader, writer):
                os.close(fd)
    with server.connect() as duck:
        assert duck.put(b"abc").nbytes == 3


def test_an_input_buffer_that_could_be_pulled_away(server: Server, program: Path) -> None:
    """Memory that its owner can cut off under the program is refused."""
    with server.connect() as duck, duck.open(program) as session:
        fd = os.memfd_create("loose")
        os.truncate(fd, 8192)
        try:
            with pytest.raises(teal.InvalidArgument):
                duck._link.map(messages.Map(session.number, None, 1, 8192), fd)
            with pytest.raises(teal.InvalidArgument, match="in a file of"):
                duck._link.map(messages.Map(session.number, None, 1, 1 << 20), fd)
        finally:
            os.close(fd)
        assert number(session.call(b"c")) == 1
