"""The clients with which the HTTP servers are called: one connection, kept alive, TCP_NODELAY, no proxy, no redirect.

`library` is the standard library's http.client, which takes half the time of httpx here. `hand` writes the request's
bytes to the socket itself and looks for the end of the answer's header: no client that people use, shown as the floor
of what the server costs.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

CONNECT_SECONDS = 60.0


def connect(address: str | tuple[str, int]) -> socket.socket:
    """A connected stream socket; waits for the server to listen. Raises TimeoutError."""
    until = time.monotonic() + CONNECT_SECONDS
    while time.monotonic() < until:
        with suppress(OSError):
            if isinstance(address, str):
                stream = socket.socket(socket.AF_UNIX)
                stream.connect(address)
            else:
                stream = socket.create_connection(address)
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stream
        time.sleep(0.05)
    raise TimeoutError(f"no server at {address} after {CONNECT_SECONDS:.0f} s")


def poster(address: str | tuple[str, int], path: str, kind: str) -> Callable[[bytes], bytes]:
    """A function that posts a body over http.client and returns the answer's body; kind: the content type."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connect(address)
    headers = {"Content-Type": kind}

    def post(body: bytes) -> bytes:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"HTTP status {response.status}: {answer[:200]!r}")
        return answer

    return post


def library(address: str | tuple[str, int], path: str, body: bytes, kind: str) -> Callable[[], bytes]:
    """A function that posts this body each time and returns the answer's body."""
    return partial(poster(address, path, kind), body)


def hand(address: str | tuple[str, int], path: str, body: bytes, expected: int) -> Callable[[], bytes]:
    """As library, by hand; expected: bytes of the answer's body."""
    stream = connect(address)
    request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def post() -> bytes:
        stream.sendall(request)
        received = stream.recv(65536)
        while (end := received.find(b"\r\n\r\n")) < 0 or len(received) < end + 4 + expected:
            received += stream.recv(65536)
        if not received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"unexpected answer {received[:200]!r}")
        return received[end + 4 :]

    return post
