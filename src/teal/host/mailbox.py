"""Answers of a host by number, for many threads on one socket.

Theory of operation: whoever waits for an answer and finds nobody reading reads one datagram, puts it where it belongs
and tells the others; so an answer that takes minutes (a big model) holds up nobody else's. No thread of its own.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from teal.errors import InternalError, PeerDied, from_core
from teal.host import wire

Answer = tuple[wire.Reply, wire.Datagram]


class Mailbox:
    """``expect(number)`` before the question is sent, then ``take(number)``."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._turn = threading.Condition()  # guards everything below
        self._answers: dict[int, Answer | None] = {}  # None: expected
        self._reading = False
        self._end: wire.Failure | None = None  # why there are no more answers

    def expect(self, number: int) -> None:
        with self._turn:
            self._answers[number] = None

    def forget(self, number: int) -> None:
        """The question was not sent after all."""
        with self._turn:
            self._answers.pop(number, None)

    def take(self, number: int) -> Answer:
        """Waits for the answer to that question. Raises PeerDied, or what the host said before it hung up.

        When it is interrupted (Ctrl-C, a timeout of the socket) the answer is passed over once it comes.
        """
        found: Answer | None = None
        try:
            while found is None:
                with self._turn:
                    while self._answers[number] is None and self._reading and self._end is None:
                        self._turn.wait()
                    found = self._answers[number]
                    if found is None and self._end is not None:
                        raise from_core(self._end.kind, self._end.message)
                    self._reading = found is None or self._reading
                if found is None:
                    self._read()
            return found
        finally:
            with self._turn:
                left = self._answers.pop(number)
            if left is not None and left is not found:
                left[1].close()

    def _read(self) -> None:
        try:
            datagram = self._receive()
            with self._turn:
                self._deliver(datagram)
        finally:
            with self._turn:
                self._reading = False
                self._turn.notify_all()

    def _receive(self) -> wire.Datagram | None:
        try:
            return wire.receive(self._socket)
        except TimeoutError:
            raise
        except ConnectionResetError:  # it hung up with a message of ours unread; what it said before that comes now
            with contextlib.suppress(OSError):
                return wire.receive(self._socket)
            return None
        except OSError:
            return None

    def _deliver(self, datagram: wire.Datagram | None) -> None:
        if datagram is None:
            self._end = self._end or wire.failure_of(PeerDied("host", "its process is gone"))
            return
        try:
            reply = wire.decode_reply(datagram.data)
        except Exception as error:
            datagram.close()
            raise InternalError(f"the host sent an answer that is not understood: {error}") from error
        if reply.id in self._answers:
            self._answers[reply.id] = reply, datagram
            return
        datagram.close()
        if reply.id == 0:  # the host refuses this connection, and says why before it hangs up
            self._end = reply.error
