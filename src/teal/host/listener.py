"""The host's front door: takes connections, reads messages, writes replies.

Theory of operation: a connection is a SOCK_SEQPACKET socket; each message is one Envelope and gets one Reply, in any
order. What a client sent is decoded strictly; a message that is not understood ends that connection. A client has at
most ``_ANSWERING`` messages being answered at a time; more wait in its own socket, so that neither memory nor
descriptors of the host grow with a client that only talks. Descriptors that come where none is expected are closed at
once. The last quarter of the process's descriptors is kept for newcomers: more memory for who has some is refused
(``spare_descriptors``), so that a greedy client cannot lock the others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from teal.errors import InvalidArgument, QuotaExceeded, TealError
from teal.host import address as addresses
from teal.host import wire
from teal.host.limits import Limits, spare_descriptors
from teal.host.session import Session

log = logging.getLogger("teal.host")

_ANSWERING = 16  # a well-behaved client asks one thing at a time
_BATCH = 64  # messages read from one client before the others are looked at
_PAUSE = 0.05  # seconds between looks at a client that we do not read, or at a process without descriptors


@dataclass(slots=True, eq=False)
class Client:
    """One connection."""

    sock: socket.socket
    pid: int
    uid: int
    owner: bool  # the host's own user, or root
    greeted: bool = False
    sessions: dict[str, Session] = field(default_factory=dict)  # by pool
    bpf_sessions: list[tuple[str, Session]] = field(default_factory=list)  # (pool, session)
    accounts: dict[str, list[Session]] = field(default_factory=dict)  # by pool; what has been closed leaves by itself
    answering: int = 0
    reading: bool = False
    looked_at: bool = False  # a timer for _look_at() runs
    gone: bool = False

    def all_sessions(self) -> list[tuple[str, Session]]:
        return [*self.sessions.items(), *self.bpf_sessions]


Answer = tuple[Any, tuple[int, ...]]  # body, descriptors (which stay the host's)


class Listener:
    """``open`` binds, ``start`` lets clients in, ``close`` lets no more in, ``hang_up_on_all`` ends the connections."""

    def __init__(
        self,
        address: str,
        allowed: Iterable[int],
        limits: Limits,
        obey: Callable[[Client, wire.ClientMessage, wire.Datagram], Awaitable[Answer]],
        on_gone: Callable[[Client], None],
    ) -> None:
        self.address = address
        self.allowed = frozenset(allowed)
        self.clients: set[Client] = set()
        self._limits = limits
        self._obey = obey
        self._on_gone = on_gone
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Raises Busy when another host has the address."""
        self._loop = asyncio.get_running_loop()
        self._socket = addresses.listen(self.address, others=len(self.allowed) > 1)

    def start(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        if self._socket is None:
            return
        if not self.address.startswith("@"):  # while it is ours: once closed, another host may take the path
            Path(self.address).unlink(missing_ok=True)
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = None

    def hang_up_on_all(self) -> None:
        for client in list(self.clients):
            client.gone = True
            self.clients.discard(client)
            self._stop_reading(client)
            client.sock.close()

    def forget(self) -> None:
        """In a forked child: closes its copies, so that it keeps neither the name nor a connection alive."""
        sockets = [client.sock for client in self.clients]
        for sock in sockets if self._socket is None else [*sockets, self._socket]:
            with contextlib.suppress(OSError):
                sock.close()

    def task(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Runs it on the loop and keeps it until it is done."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- who comes in --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while self._socket is not None:
            try:
                sock, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptor or no memory for it: it waits in the backlog. Look again soon, and not all the time.
                log.error("accept: %s", error)
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(_PAUSE, self.start)
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        pid, uid = addresses.peer(sock)
        sock.setblocking(False)
        client = Client(sock, pid, uid, owner=uid in (os.getuid(), 0))
        if uid not in self.allowed:
            self._refuse(
                client,
                "NotFound",
                f"user {uid} may not use this host; its owner can allow it: teal serve --allow-user {uid}",
            )
            return
        if len(self.clients) >= self._limits.clients:
            self._refuse(
                client,
                "QuotaExceeded",
                f"{len(self.clients)} clients are connected, the most this host takes (Limits.clients)",
            )
            return
        try:
            spare_descriptors(sock.fileno(), "one more client", 0.85)
        except QuotaExceeded as error:
            self._refuse(client, "QuotaExceeded", str(error))
            return
        self.clients.add(client)
        self._read_from(client)

    def _refuse(self, client: Client, kind: str, message: str) -> None:
        with contextlib.suppress(OSError):
            wire.send(client.sock, wire.Reply(0, error=wire.Failure(kind, message)))
        client.sock.close()

    def hang_up(self, client: Client) -> None:
        """Ends a connection; what it had is given up by ``on_gone``."""
        if client.gone:
            return
        client.gone = True
        self.clients.discard(client)
        self._stop_reading(client)
        client.sock.close()
        self._on_gone(client)

    # ---- what they say -------------------------------------------------------------------------------------------

    def _read_from(self, client: Client) -> None:
        client.reading = True
        self._loop.add_reader(client.sock.fileno(), self._readable, client)

    def _stop_reading(self, client: Client) -> None:
        if client.reading:
            client.reading = False
            self._loop.remove_reader(client.sock.fileno())

    def _readable(self, client: Client) -> None:
        for _ in range(_BATCH):  # a talkative client does not keep the others waiting
            if client.answering >= _ANSWERING:
                self._stop_reading(client)
                if not client.looked_at:
                    client.looked_at = True
                    self._loop.call_later(_PAUSE, self._look_at, client)
                return
            try:
                datagram = wire.receive(client.sock)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it left with an answer unread
                datagram = None
            except (OSError, TealError) as error:
                log.warning("client process %d: %s", client.pid, error)
                datagram = None
            if datagram is None or not self._understood(client, datagram):
                self.hang_up(client)
                return

    def _look_at(self, client: Client) -> None:
        """A client we do not read from now: is it still there?"""
        client.looked_at = False
        if client.gone or client.reading:
            return
        poll = select.poll()
        poll.register(client.sock, select.POLLRDHUP)
        if poll.poll(0):
            self.hang_up(client)
        else:
            client.looked_at = True
            self._loop.call_later(_PAUSE, self._look_at, client)

    def _understood(self, client: Client, datagram: wire.Datagram) -> bool:
        try:
            envelope = wire.decode_envelope(datagram.data)
        except Exception as error:  # msgspec names the part: - at `$.body.nbytes`
            datagram.close()
            log.warning("client process %d sent a message that is not understood: %s", client.pid, error)
            failure = wire.Failure("InvalidArgument", f"message not understood: {error}")
            # An argument of a wrong type is the caller's mistake, not the connection's end.
            number = wire.envelope_id(datagram.data) if client.greeted else None
            self._reply(client, wire.Reply(number or 0, error=failure))
            return number is not None
        expected = int(isinstance(envelope.body, wire.OpenBpfSession))
        if isinstance(envelope.body, wire.Load):
            expected = envelope.body.has_file + envelope.body.has_weights
            expected += min(max(envelope.body.sealed, 0), wire.MAX_SEALED) if envelope.body.has_file else 0
        datagram.close(keep=expected)
        client.answering += 1
        self.task(self._answer(client, envelope, datagram))
        return True

    async def _answer(self, client: Client, envelope: wire.Envelope, datagram: wire.Datagram) -> None:
        fds: tuple[int, ...] = ()
        try:
            if client.gone:  # it said this, and left before we came to it
                return
            if not client.greeted and not isinstance(envelope.body, wire.Hello):
                raise InvalidArgument("the first message must be hello")
            body, fds = await self._obey(client, envelope.body, datagram)
            reply = wire.Reply(envelope.id, body)
        except TealError as error:
            reply = wire.Reply(envelope.id, error=wire.failure_of(error))
        except Exception as error:
            log.exception("while answering %s of process %d", type(envelope.body).__name__, client.pid)
            reply = wire.Reply(envelope.id, error=wire.failure_of(error))
        finally:
            datagram.close()
            client.answering -= 1
        self._reply(client, reply, fds)
        if not client.gone and not client.reading and client.answering < _ANSWERING // 2:
            self._read_from(client)

    def _reply(self, client: Client, reply: wire.Reply, fds: tuple[int, ...] = ()) -> None:
        if client.gone:
            return
        try:
            wire.send_reply(client.sock, reply, fds)
        except BlockingIOError:
            # It sends requests and does not read the answers.
            log.warning("client process %d does not read its answers: hanging up", client.pid)
            self.hang_up(client)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has left; its socket says so too
        except (OSError, TealError) as error:
            # No memory, or too many descriptors under way: it must hear of it, for it waits.
            failure = wire.Failure("QuotaExceeded", f"the answer could not be sent: {error}")
            try:
                wire.send(client.sock, wire.Reply(reply.id, error=failure))
            except OSError:
                self.hang_up(client)
