"""Where clients of this machine come in: a UNIX socket, and a thread for each of them.

Theory of operation: a client's messages are answered in their order by its own thread, so that one that asks for
something long holds up nobody else. Both ends ask the kernel who the other one is (host/address.py). When a connection
ends, however it ends, ``gone`` is called once: what its owner had goes at once. A message that is not understood ends
the connection of who sent it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from teal.duck import messages
from teal.duck.owner import Owner
from teal.errors import Busy, InvalidArgument, QuotaExceeded, TealError
from teal.host import address as addresses
from teal.host import wire
from teal.host.limits import spare_descriptors

log = logging.getLogger("teal.duck")

MOST_CLIENTS = 128
Answer = tuple[Any, tuple[int, ...]]  # body, descriptors (which stay the duck's)
Obey = Callable[[Owner, messages.ClientMessage, wire.Datagram], Answer]


class Door:
    """Open from the start. ``close`` lets nobody in any more and hangs up on all."""

    def __init__(self, address: str, obey: Obey, gone: Callable[[Owner], None]) -> None:
        self.address = address
        self._obey = obey
        self._gone = gone
        self._guard = threading.Lock()  # guards _inside
        self._inside: dict[threading.Thread, socket.socket] = {}
        try:
            self._socket = addresses.listen(address)
        except Busy:
            raise Busy(
                f"a duck listens at {address} already; use it with teal.Duck(), or give --name another name"
            ) from None
        self._socket.setblocking(True)
        self._closed = False
        self._accepting = threading.Thread(target=self._accept, name="teal-duck-door", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._accepting.join()
        if not self.address.startswith("@"):
            Path(self.address).unlink(missing_ok=True)
        self._socket.close()
        with self._guard:
            inside = dict(self._inside)
        for sock in inside.values():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in inside:
            if thread is not threading.current_thread():
                thread.join()

    def forget(self) -> None:
        """In a forked child: closes its copies, so that it keeps neither the name nor a connection alive."""
        for sock in (self._socket, *self._inside.values()):
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    @property
    def clients(self) -> int:
        with self._guard:
            return len(self._inside)

    # ---- who comes in ------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                log.error("accept: %s", error)
                threading.Event().wait(0.05)  # no descriptor or no memory for it: it waits in the backlog
                continue
            try:
                owner = self._admitted(sock)
            except TealError as error:
                with contextlib.suppress(OSError):
                    wire.send(sock, wire.Reply(0, error=wire.failure_of(error)))
                sock.close()
                continue
            thread = threading.Thread(target=self._serve, args=(sock, owner), name="teal-duck-client", daemon=True)
            with self._guard:
                self._inside[thread] = sock
            thread.start()

    def _admitted(self, sock: socket.socket) -> Owner:
        pid, uid = addresses.peer(sock)
        if uid not in (os.getuid(), 0):
            raise InvalidArgument(f"user {uid} may not use this duck, which belongs to user {os.getuid()}")
        if self.clients >= MOST_CLIENTS:
            raise QuotaExceeded(f"{self.clients} clients are connected, the most that a duck takes")
        spare_descriptors(sock.fileno(), "one more client", 0.85)
        return Owner(f"process {pid}", pid=pid, here=True)

    # ---- what they say -----------------------------------------------------------------------------------------------

    def _serve(self, sock: socket.socket, owner: Owner) -> None:
        try:
            while (datagram := _received(sock)) is not None:
                try:
                    if not self._answered(sock, owner, datagram):
                        break
                finally:
                    datagram.close()
        except Exception:
            log.exception("while serving %s", owner.label)
        finally:
            sock.close()
            self._gone(owner)
            with self._guard:
                self._inside.pop(threading.current_thread(), None)

    def _answered(self, sock: socket.socket, owner: Owner, datagram: wire.Datagram) -> bool:
        """False: this connection is over."""
        number = wire.envelope_id(datagram.data) or 0
        fds: tuple[int, ...] = ()
        try:
            envelope = messages.decode_envelope(datagram.data)
            number = envelope.id
            if not owner.greeted and not isinstance(envelope.body, messages.Hello):
                raise InvalidArgument("the first message must be hello")
            body, fds = self._obey(owner, envelope.body, datagram)
            reply = wire.Reply(number, body)
        except TealError as error:
            reply = wire.Reply(number, error=wire.failure_of(error))
        except ValueError as error:  # msgspec names the part: - at `$.body.nbytes`
            reply = wire.Reply(number, error=wire.Failure("InvalidArgument", f"message not understood: {error}"))
        except Exception as error:
            log.exception("while answering %s", owner.label)
            reply = wire.Reply(number, error=wire.failure_of(error))
        try:
            wire.send_reply(sock, reply, fds)
        except (OSError, TealError):
            return False
        return owner.greeted


def _received(sock: socket.socket) -> wire.Datagram | None:
    try:
        return wire.receive(sock)
    except ConnectionResetError:  # it left with an answer unread
        return None
    except (OSError, TealError) as error:
        log.warning("a client sent what is not understood: %s", error)
        return None
