"""A duck elsewhere, as a link (link.py): messages, blobs and calls through one connection of the core (core/duck)."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from teal import _core
from teal._version import __version__
from teal.duck import messages
from teal.duck.blob import Blob
from teal.duck.lent import Lent
from teal.duck.link import ANSWER_S
from teal.errors import InternalError, InvalidArgument, from_core
from teal.host import wire

_PUT_S = 600.0
_encode = msgspec.msgpack.Encoder().encode


class Far:
    """A connection to HOST:PORT."""

    near = False

    def __init__(self, address: str, key: bytes | None, tcp: bool, timeout: float) -> None:
        self._remote = _core.DuckRemote(address, key or b"", tcp, int(timeout * 1e9))
        self.address = address
        self.sent_bytes = self.skipped_bytes = 0
        self._counting = threading.Lock()
        try:
            self.ask(messages.Hello(messages.PROTOCOL, __version__, os.getpid()), timeout)
        except BaseException:
            self._remote.close()
            raise

    def ask(self, message: Any, timeout: float = ANSWER_S) -> Any:
        data = self._remote.request(_encode(message), int(timeout * 1e9))
        try:
            reply = wire.decode_reply(data)
        except Exception as error:
            raise InternalError(f"the duck sent an answer that is not understood: {error}") from error
        if reply.error is not None:
            raise from_core(reply.error.kind, reply.error.message)
        return reply.body

    def put(self, kind: str, blob: Blob | Lent) -> None:
        if self.ask(messages.Has(kind, [blob.digest]))[0]:
            with self._counting:
                self.skipped_bytes += blob.nbytes
            return
        with blob.view() as data:
            sent = self._remote.put(bytes.fromhex(blob.digest), data, int(_PUT_S * 1e9))
        self.put_away(kind, blob, sent)

    @property
    def remote(self) -> _core.DuckRemote:
        return self._remote

    def put_away(self, kind: str, blob: Blob | Lent, sent: int) -> None:
        """Tells what a blob is that has been sent."""
        with self._counting:
            self.sent_bytes += sent
        self.ask(messages.Put(kind, blob.nbytes, blob.digest))

    def open(self, message: messages.Open) -> tuple[dict[str, Any], _core.DuckLine]:
        path = self._remote.direct()
        message.direct = 0 if path is None else path.port
        body = self.ask(message)
        facts = body["facts"]
        port, number = body["direct"] or (0, 0)
        line = self._remote.line(
            body["wire"],
            facts["args_bytes"],
            facts["ob_bytes"],
            body["name"] or "program",
            path if port else None,
            port,
            number,
        )
        return body, line

    def map(self, message: messages.Map, fd: int | None) -> Any:
        if fd is not None:
            raise InvalidArgument("shared memory does not reach a duck elsewhere", path="$.x")
        return self.ask(message)

    def ping(self) -> float:
        return self._remote.ping(int(ANSWER_S * 1e9)) / 1e9

    def figures(self) -> dict[str, int]:
        """Counters of the connection."""
        return self._remote.figures()

    def close(self) -> None:
        self._remote.close()


def put_to_all(links: Sequence[Far], kind: str, blob: Blob | Lent, how: tuple[str, str, int, int]) -> tuple[int, int]:
    """Sends a blob to several by multicast, and to each what it lacks then. Returns the bytes of both.

    how: (group and port, address of the interface, bytes a second, bytes of a datagram).
    """
    digest, remotes = bytes.fromhex(blob.digest), [link.remote for link in links]
    if blob.nbytes == 0:
        raise InvalidArgument("no bytes, expected one or more", path="$.x")
    with blob.view() as data:
        group, sent = _core.duck_put_group(remotes, digest, data, *how, int(_PUT_S * 1e9))
    for link, one in zip(links, sent, strict=True):
        link.put_away(kind, blob, one)
    return group, sum(sent)
