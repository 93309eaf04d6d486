"""Where clients of other machines come in: what the network loop does not do by itself.

Theory of operation: the loop (core/duck) has the sockets and answers calls. It says what else there is through a queue
and an eventfd: a client that came or went, a message, a blob that has arrived. One thread here reads that queue;
messages of one client are answered in their order by a thread of its own, so that one that asks for something long
holds up nobody else. Whose connection is lost loses its sessions at once.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import queue
import select
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from teal import _core
from teal.duck import messages
from teal.duck.blob import Blob
from teal.duck.owner import Owner
from teal.duck.proof import Proof
from teal.errors import Busy, InvalidArgument, QuotaExceeded, TealError
from teal.host import wire

if TYPE_CHECKING:
    from teal.duck.residents import Resident
    from teal.duck.server import Server

log = logging.getLogger("teal.duck")

_OPENED, _LOST, _MESSAGE, _BLOB, _CHECKED, _WRONG_KEY = 1, 2, 3, 4, 5, 6
_MOST_WAITING = 64  # messages of one client
_PAUSE_MS = 100
_PORT_TRIES = 8
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(messages.ClientMessage).decode


@dataclass(slots=True, eq=False)
class _Peer:
    owner: Owner
    connection: int
    waiting: queue.SimpleQueue[tuple[int, bytes] | None] = field(default_factory=queue.SimpleQueue)


def split_address(text: str) -> tuple[str, int]:
    """HOST and PORT of HOST:PORT or [V6]:PORT. Raises InvalidArgument."""
    host, colon, port = text.rpartition(":")
    if not host or not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgument(f"{text[:80]!r}, expected HOST:PORT such as 0.0.0.0:7311 or [::]:7311", path="$.listen")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Does this address mean this machine alone? A name other than localhost does not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_listen(listen: str, key: bytes | None) -> tuple[str, int]:
    """HOST and PORT. Raises InvalidArgument: others could reach it, and there is no key."""
    host, port = split_address(listen)
    if key is None and not is_loopback(host):
        raise InvalidArgument(
            f"{listen} can be reached from other machines, and there is no key; make one with `teal duck key > "
            "duck.key` and give it as --key-file",
            path="$.key",
        )
    return host, port


def _free_port(host: str) -> int:
    """One that nobody listens on over TCP just now; UDP shall have the same."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise InvalidArgument(f"cannot listen at {host}: {error.strerror or error}", path="$.listen") from None
        return int(probe.getsockname()[1])


class Gate:
    """Open from the start."""

    def __init__(self, server: Server, listen: str, key: bytes | None, multicast: str | None) -> None:
        host, port = check_listen(listen, key)
        self._server = server
        at = f"[{host}]" if ":" in host else host
        most = server.budget.data
        for left in reversed(range(_PORT_TRIES)):
            chosen = f"{at}:{port or _free_port(host)}"
            try:
                self._net = _core.DuckNet(chosen, chosen, key or b"", server.idle_ns, most, multicast or "")
                break
            except Busy:
                if port or not left:  # it was given, or somebody is always faster
                    raise
        self.address = f"{at}:{self._net.udp_port}"
        self._peers: dict[int, _Peer] = {}  # the reader's alone, but for its length
        self._closed = threading.Event()
        self._net.start()
        self._reader = threading.Thread(target=self._read, name="teal-duck-net", daemon=True)
        self._reader.start()

    @property
    def clients(self) -> int:
        return len(self._peers)

    def figures(self) -> dict[str, int]:
        return self._net.figures()

    def close(self) -> None:
        self._closed.set()
        self._reader.join()
        self._net.close()
        for peer in self._peers.values():
            peer.waiting.put(None)

    def offer(self, owner: Owner, port: int) -> _core.DuckOffer:
        """For direct calls of a session that this client is about to open."""
        return self._net.direct(owner.connection, port)

    def attach(self, owner: Owner, resident: Resident) -> None:
        """Lets a session's owner call it."""
        resident.wire = number = self._net.attach(owner.connection, resident.box)
        resident.ends = lambda: self._net.detach(number)

    # ---- events ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._net.event_fd, select.POLLIN)
        while not self._closed.is_set():
            poll.poll(_PAUSE_MS)
            while (event := self._net.next_event()) is not None:
                try:
                    self._happened(*event)
                except Exception:
                    log.exception("while the network said something")

    def _happened(
        self, kind: int, connection: int, number: int, data: bytes, text: str, digest: bytes, size: int, fd: int
    ) -> None:
        if kind == _BLOB:
            self._server.arrived(Blob(digest.hex(), size, fd, proof=None if number else Proof(connection)))
        elif kind == _CHECKED:
            self._server.checked(digest.hex(), connection, good=bool(number))
        elif kind == _WRONG_KEY:
            log.warning("%s: %d packet(s) under a wrong key, the last from there; they are dropped", text, number)
        elif kind == _OPENED:
            peer = _Peer(Owner(text, connection=connection), connection)
            self._peers[connection] = peer
            threading.Thread(target=self._serve, args=(peer,), name="teal-duck-peer", daemon=True).start()
            log.info("client %s is here", text)
        elif kind == _LOST:
            if (peer_gone := self._peers.pop(connection, None)) is not None:
                log.info("client %s is gone: %s", peer_gone.owner.label, text)
                peer_gone.owner.gone = True
                peer_gone.waiting.put(None)
                self._server.gone(peer_gone.owner)
        elif kind == _MESSAGE and (peer_says := self._peers.get(connection)) is not None:
            if peer_says.waiting.qsize() >= _MOST_WAITING:
                error = QuotaExceeded(f"{_MOST_WAITING} messages of this client wait to be answered")
                self._net.reply(connection, number, _encode(wire.Reply(0, error=wire.failure_of(error))))
            else:
                peer_says.waiting.put((number, data))

    def _serve(self, peer: _Peer) -> None:
        while (said := peer.waiting.get()) is not None:
            if peer.owner.gone:
                continue
            number, data = said
            reply = self._answer(peer, data)
            with contextlib.suppress(TealError):
                self._net.reply(peer.connection, number, reply)
        self._server.gone(peer.owner)

    def _answer(self, peer: _Peer, data: bytes) -> bytes:
        body: Any = None
        try:
            message = _decode(data)
            if not peer.owner.greeted and not isinstance(message, messages.Hello):
                raise InvalidArgument("the first message must be hello")
            body, _ = self._server.obey(peer.owner, message, wire.Datagram(b""))
            return _encode(wire.Reply(0, body))
        except TealError as error:
            return _encode(wire.Reply(0, error=wire.failure_of(error)))
        except ValueError as error:
            failure = wire.Failure("InvalidArgument", f"message not understood: {error}")
            return _encode(wire.Reply(0, error=failure))
        except Exception as error:
            log.exception("while answering %s", peer.owner.label)
            return _encode(wire.Reply(0, error=wire.failure_of(error)))
