"""A client's connection to a host: the control socket, and sessions with its pools.

Theory of operation: any thread asks, answers come in any order (mailbox.py); nothing here is on the path of a call.
Memory comes in regions that double in size, so that attaching costs little and large callers need few of them. A forked
child closes its copy of the socket at once: the host must hear of the parent's end whatever the child does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from teal import _core
from teal._version import __version__
from teal.errors import Closed, PeerDied, QuotaExceeded
from teal.host import address as addresses
from teal.host import wire
from teal.host.lease import Lease
from teal.host.mailbox import Mailbox

if TYPE_CHECKING:
    from teal.host.future import Future
    from teal.host.model import Model

T = TypeVar("T")

_FIRST_REGION = 256 * 1024
_LARGEST_STEP = 64 << 20
_MOST_TRIES = 64
_LOOKED_AT = 4


class PoolSession:
    """This client's session with one pool, and the regions it has there."""

    def __init__(self, connection: Connection, pool: str) -> None:
        self._connection = connection
        self.pool = pool
        body, fds = connection.ask(wire.OpenSession(pool))
        self.index: int = body["index"]
        self.limit: int = body["bytes"]
        idle_ns = body["idle_ns"] if connection.idle_ns is None else connection.idle_ns
        self.core = _core.Session(fds[0], self.index, body["epoch"], body["slots"], idle_ns, connection.socket.fileno())
        self.notifier = _core.Notifier(self.core)
        self._registering = threading.Lock()  # guards _models
        self._models: weakref.WeakSet[Model] = weakref.WeakSet()  # whose idle slots may make room for others
        self._growing = threading.Lock()
        self._leasing = threading.Lock()  # guards _newest
        self._newest: weakref.ref[Lease] | None = None
        self._lent: deque[Future] = deque()  # whose outputs went to other calls

    def raise_idle(self, idle_ns: int) -> None:
        """A model's callers may spin so long, unless this process has said how long its own do."""
        if self._connection.idle_ns is None:
            self.core.raise_idle(idle_ns)

    def grow(self, nbytes: int, pages: str = "best") -> None:
        """Adds a region with room for at least ``nbytes`` more. Raises QuotaExceeded."""
        with self._growing:
            have = self.core.region_bytes
            wanted = max(nbytes + 8192, _FIRST_REGION, min(have, _LARGEST_STEP))
            wanted = (wanted + 4095) // 4096 * 4096
            message = wire.MakeRegion(self.index, wanted, pages, self.pool)
            try:
                body, fds = self._connection.ask(message)
            except QuotaExceeded:
                self._reclaim()
                self.shrink()
                message.nbytes = (nbytes + 8192 + 4095) // 4096 * 4096
                body, fds = self._connection.ask(message)
            self.core.add_region(body["region"], fds[0])

    def shrink(self, keep: int = 0) -> None:
        """Gives regions that hold nothing back to the host, except ``keep`` bytes."""
        for region in self.core.take_empty_regions(keep):
            self._connection.ask(wire.FreeRegion(self.index, region, self.pool))

    def take_spill(self, number: int) -> tuple[Any, int, Lease | None]:
        """Layout, descriptor and lease of outputs that were larger than planned; who shows them holds the lease.

        They can be taken once.
        """
        layout, fds = self._connection.ask(wire.TakeSpill(self.index, number, self.pool))
        with self._leasing:
            if len(fds) > 1:
                own = Lease(fds[1])
                self._newest = weakref.ref(own)
                return layout, fds[0], own
            return layout, fds[0], self._newest() if self._newest is not None else None

    def with_room(self, take: Callable[[], T | None], nbytes: int, pages: str = "best") -> T:
        """What ``take`` gives, once there is room for it. Raises QuotaExceeded when there never is."""
        reclaimed = False
        for _ in range(_MOST_TRIES):  # another thread may be faster and take the room
            try:
                taken = take()
                if taken is not None:
                    return taken
                self.grow(nbytes, pages)
            except QuotaExceeded:  # of memory, or no completion line is left
                if reclaimed:
                    raise
                reclaimed = True  # which may have made room where no more can be had
                self._reclaim()
        raise QuotaExceeded(f"no room for {nbytes} bytes in this client's shared memory")

    def lend(self, future: Future) -> None:
        """Its output is an input of another call: nobody else may ever look whether it has ended."""
        self._lent.append(future)
        self.look_at_lent(_LOOKED_AT)

    def look_at_lent(self, most: int | None = None) -> None:
        """Lets go of those that have ended, and of what they kept; a spilled one is fetched, and its size learned."""
        for _ in range(len(self._lent) if most is None else min(most, len(self._lent))):
            try:
                future = self._lent.popleft()
            except IndexError:  # another thread looks too
                return
            if future.done():
                future._forget_spill()
            else:
                self._lent.append(future)

    def register(self, model: Model) -> None:
        """``model.forget_idle()`` is called when memory or completion lines are short."""
        with self._registering:
            self._models.add(model)

    def _reclaim(self) -> None:
        """Slots that nobody holds keep memory and lines for calls of their shapes: while there are some to spare."""
        self.look_at_lent()
        with self._registering:
            models = list(self._models)
        for model in models:
            model.forget_idle()


class Connection:
    """The control socket. Raises NotFound when no host is there, VersionMismatch when it is another build."""

    def __init__(self, address: str | None, timeout: float = 5.0, idle_ns: int | None = None) -> None:
        self.socket, self.address = addresses.connect(address, timeout)
        self.idle_ns = idle_ns  # longest spin of this process's calls, if it has a wish of its own
        self._mailbox = Mailbox(self.socket)
        self._sending = threading.Lock()
        self._opening = threading.Lock()
        self._next = 0
        self._sessions: dict[str, PoolSession] = {}
        self._pid = os.getpid()
        self.closed = False
        self.socket.settimeout(timeout)
        try:
            body, _ = self.ask(wire.Hello(wire.PROTOCOL, _core.ABI_VERSION, __version__, os.getpid()))
        except TimeoutError:
            self.socket.close()
            raise PeerDied(
                "host", f"it took the connection at {self.address} but did not answer within {timeout} s"
            ) from None
        except BaseException:
            self.socket.close()
            raise
        self.socket.settimeout(None)
        self.host_pid: int = body["pid"]
        _open.add(self)

    def ask(self, message: Any, fds: tuple[int, ...] = ()) -> tuple[Any, list[int]]:
        """Sends a message and waits for its answer: (body, descriptors, which are the caller's now)."""
        self.check_not_forked()
        with self._sending:
            if self.closed:
                raise Closed("the connection to the host is closed")
            self._next += 1
            number = self._next
            self._mailbox.expect(number)
            try:
                wire.send(self.socket, wire.Envelope(number, message), fds)
            except (BrokenPipeError, ConnectionResetError):
                pass  # its last words are still to be read
            except BaseException as error:
                self._mailbox.forget(number)
                if isinstance(error, OSError) and self.closed:
                    raise Closed("the connection to the host is closed") from None
                raise
        try:
            reply, datagram = self._mailbox.take(number)
        except PeerDied:
            if self.closed:
                raise Closed("the connection to the host was closed before the answer came") from None
            raise
        try:
            body = wire.body_of(reply, datagram)
            taken, datagram.fds = datagram.fds, []
        finally:
            datagram.close()
        return body, taken

    def check_not_forked(self) -> None:
        if self._pid != os.getpid():
            raise Closed("made before fork(): reopen after fork with teal.connect()")

    def session(self, pool: str) -> PoolSession:
        """The session with a pool; opened at first use."""
        with self._opening:
            session = self._sessions.get(pool)
            if session is None:
                session = self._sessions[pool] = PoolSession(self, pool)
        return session

    @property
    def sessions(self) -> dict[str, PoolSession]:
        return self._sessions

    def close(self) -> None:
        """Hangs up: the host cancels what waits and frees this client's memory. Views in this process stay readable."""
        if self.closed:
            return
        self.closed = True
        if self._pid != os.getpid():
            return
        for session in self._sessions.values():
            session.core.close()
            session.notifier.stop()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


_open: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_in_child() -> None:
    for connection in list(_open):
        with contextlib.suppress(OSError):
            connection.socket.close()


os.register_at_fork(after_in_child=_forget_in_child)
