"""How a client reaches a duck: the same questions on this machine and elsewhere.

Theory of operation: ``Near`` is a duck on this machine. Messages go over its UNIX socket, memory over descriptors, and
calls through memory that client and box share. ``Far`` (far.py) is one elsewhere. What is different between them is
behind these few methods; a Session does not know which one it has.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from teal import _core
from teal._version import __version__
from teal.duck import messages
from teal.errors import Closed, NotFound, PeerDied
from teal.host import address as addresses
from teal.host import wire
from teal.host.mailbox import Mailbox

if TYPE_CHECKING:
    from teal.duck.blob import Blob
    from teal.duck.lent import Lent

ANSWER_S = 30.0  # longest wait for the answer to a message, beyond what the message itself may take


class Link(Protocol):
    """near: memory can be shared. address: for people."""

    near: bool
    address: str
    sent_bytes: int  # over the wire, without what had to be sent again
    skipped_bytes: int  # that the duck had already

    def ask(self, message: Any, timeout: float = ANSWER_S) -> Any:
        """The body of the answer. Raises what the duck says, PeerDied, DeadlineExceeded, Closed."""
        ...

    def put(self, kind: str, blob: Blob | Lent) -> None:
        """After this the duck has it. Lent: to a duck elsewhere alone."""
        ...

    def open(self, message: messages.Open) -> tuple[dict[str, Any], _core.DuckLine]:
        """A session and the way its calls take."""
        ...

    def map(self, message: messages.Map, fd: int | None) -> Any: ...

    def ping(self) -> float:
        """Seconds of one round trip."""
        ...

    def figures(self) -> dict[str, int]:
        """Counters of the connection; on this machine there are none."""
        ...

    def close(self) -> None: ...


def default_address(name: str = "default") -> str:
    """``@teal/<uid>/duck-<name>``. Raises InvalidArgument for what is no name."""
    return addresses.default_address(f"duck-{name}")


class Near:
    """A duck on this machine."""

    near = True

    def __init__(self, address: str, timeout: float) -> None:
        try:
            self.socket, self.address = addresses.connect(address, timeout)
        except NotFound as error:
            if "belongs to user" in str(error):
                raise NotFound(
                    f"the duck at {address} is another user's; give its address by hand if you trust it"
                ) from None
            raise NotFound(f"no duck listens at {address}; start one with `teal duck serve`") from None
        self.sent_bytes = self.skipped_bytes = 0
        self._mailbox = Mailbox(self.socket)
        self._sending = threading.Lock()
        self._next = 0
        self._pid = os.getpid()
        self._closed = False
        self.socket.settimeout(timeout)
        try:
            body = self.ask(messages.Hello(messages.PROTOCOL, __version__, os.getpid()))
        except TimeoutError:
            self.socket.close()
            raise PeerDied(
                "duck", f"it took the connection at {self.address} and gave no answer in {timeout:g} s"
            ) from None
        except BaseException:
            self.socket.close()
            raise
        self.socket.settimeout(None)
        self.pid: int = body["pid"]
        _near.add(self)

    def ask(self, message: Any, timeout: float = ANSWER_S) -> Any:
        return self._ask(message, ())[0]

    def _ask(self, message: Any, fds: tuple[int, ...]) -> tuple[Any, list[int]]:
        if self._pid != os.getpid():
            raise Closed("made before fork(): reopen after fork with teal.Duck()")
        with self._sending:
            if self._closed:
                raise Closed("the connection to the duck is closed")
            self._next += 1
            number = self._next
            self._mailbox.expect(number)
            try:
                wire.send(self.socket, messages.Envelope(number, message), fds)
            except (BrokenPipeError, ConnectionResetError):
                pass  # its last words are still to be read
            except BaseException:
                self._mailbox.forget(number)
                raise
        try:
            reply, datagram = self._mailbox.take(number)
        except PeerDied as error:
            if self._closed:
                raise Closed("the connection to the duck was closed before the answer came") from None
            raise PeerDied("duck", error.how) from None
        try:
            body = wire.body_of(reply, datagram)
            taken, datagram.fds = datagram.fds, []
        finally:
            datagram.close()
        return body, taken

    def put(self, kind: str, blob: Blob | Lent) -> None:
        from teal.duck.blob import Blob

        assert isinstance(blob, Blob)
        if self.ask(messages.Has(kind, [blob.digest]))[0]:
            self.skipped_bytes += blob.nbytes
            return
        self._ask(messages.Put(kind, blob.nbytes, blob.digest), (blob.fd,))

    def open(self, message: messages.Open) -> tuple[dict[str, Any], _core.DuckLine]:
        body, fds = self._ask(message, ())
        control, fate = fds
        try:
            line = _core.near_duck_line(control, fate, body["facts"], self.socket.fileno(), body["name"])
        finally:
            for fd in fds:
                os.close(fd)
        return body, line

    def map(self, message: messages.Map, fd: int | None) -> Any:
        return self._ask(message, () if fd is None else (fd,))[0]

    def ping(self) -> float:
        import time

        start = time.perf_counter()
        self.ask(messages.Hello(messages.PROTOCOL, __version__, os.getpid()))
        return time.perf_counter() - start

    def figures(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            self.socket.close()


_near: weakref.WeakSet[Near] = weakref.WeakSet()


def _forget_in_child() -> None:
    for link in list(_near):
        with contextlib.suppress(OSError):
            link.socket.close()


os.register_at_fork(after_in_child=_forget_in_child)
