"""A session: a program that is resident in a duck, and is called.

Theory of operation: open() has made a box with the program in it, and a *line* to it (core/bindings/duck_line.hpp):
shared memory on this machine, a connection elsewhere. A call writes its arguments, and waits for the answer; the duck's
daemon has no part in it. One call is out at a time. What a call returns is a view of the output buffer's first bytes,
which the next call writes over: a loop pays for no copy, and who wants to keep an answer copies it.

When the program dies, the call that was running (or else the next one) says so, once. Its state went with it. The call
after that opens the program anew (``restart=False``: it raises), with the same input buffer, and counts that in
``statistics().restarts``. No call is ever sent a second time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from teal import _core
from teal.duck import blob as blobs
from teal.duck import messages
from teal.duck.future import DuckFuture
from teal.duck.shared import Place
from teal.errors import Busy, Closed, DeadlineExceeded, InvalidArgument, KernelFailed, NotFound, PeerDied, TealError
from teal.host import argument
from teal.host.duration import nanoseconds

if TYPE_CHECKING:
    from teal._core import Tensor
    from teal.duck.duck import Duck


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """Of one session, as its client counts. Times in nanoseconds."""

    calls: int
    failed: int
    restarts: int
    given_up: int  # calls whose caller did not wait for the answer
    maps: int
    ib_copies: int  # input buffers that had to be copied, once each
    ib_copied_bytes: int
    last_program_ns: int  # the last call, in the program
    direct_calls: int  # that went straight to the program's box on another machine


class Prepared:
    """A call that is repeated. Made by ``session.prepare``.

    Write the arguments into ``args`` and call it: it returns a view of the answer, the same object while the answer has
    the same size. The path is one crossing into C++, a line written, a line read.
    """

    __slots__ = ("_call", "_session", "args")

    def __init__(self, session: Session, call: _core.DuckCall) -> None:
        self._session = session
        self._call = call
        self.args: Tensor = call.args
        """The arguments of the next call, uint8, in place."""

    def __call__(self) -> Tensor:
        """Raises as ``session.call``."""
        try:
            return self._call()
        except TealError as error:
            raise self._session._seen(error) from None


class Session:
    """A resident program. Made by ``duck.open``; a context manager."""

    def __init__(self, duck: Duck, order: messages.Open, blob: blobs.Blob, *, restart: bool, kill: bool) -> None:
        self._duck = duck
        self._order = order
        self._blob = blob  # of the program: what a restart sends, should the duck have lost it
        self._restart = restart
        self._kill = kill
        self._guard = threading.RLock()  # guards everything below but the line's own calls
        self._mapped: Any = None  # what map() was given last
        self._mapped_as: Any = None
        self._closed = self._died = False
        self._calls = self._failed = self._restarts = self._given_up = 0
        self._maps = self._copies = self._copied = self._direct = 0
        self._gone = 0  # segments that the duck knows to be gone
        self.timeout_ns = order.timeout_ns
        self._open()

    def _open(self) -> None:
        self._duck._link.put("programs", self._blob)
        body, self._line = self._duck._link.open(self._order)
        self.number: int = body["session"]
        """The duck's number for it, as `teal duck ls` shows it."""
        self.pid: int = body["pid"]
        """Process of the box, on the duck's machine."""
        self.sandbox: str = body["sandbox"]
        """What keeps the program in: process or kvm."""
        self.indirect: str = body["indirect"]
        """Why no call of it goes straight to its box on another machine; empty: they may, or it is on this one."""
        self._died = False
        self._there: set[int] = set()  # input buffers that the box has mapped, by their keys; the duck may drop some

    @property
    def name(self) -> str:
        """What it was opened as."""
        return self._order.name

    @property
    def cores(self) -> int:
        """How many cores enter the program."""
        return self._order.cores

    # ---- calling -----------------------------------------------------------------------------------------------------

    def call(self, args: Any = None, *, timeout: float | str | None = None) -> Tensor:
        """Calls the program: a uint8 tensor, a view of the first bytes of the output buffer, as many as it said.

        ``args``: bytes, or a packed array; copied into the call's line. ``timeout``: seconds, or "10ms"; when it passes
        the call is given up, and the session is Busy until the program has returned, or the session's own bound ends it
        (opened with cancel="kill": the program is ended at once).
        Raises DeadlineExceeded, KernelFailed (the program returned a negative number), PeerDied (it died; the next call
        starts it anew), Busy, QuotaExceeded, InvalidArgument, Closed.
        """
        self._begin(args)
        return self._answer(None if timeout is None else nanoseconds(timeout, "$.timeout"))

    def submit(self, args: Any = None) -> DuckFuture:
        """The same without waiting: a future with result(), cancel(), done(), and awaitable.

        One call of a session is out at a time: a second one raises Busy. Open several sessions for more.
        """
        self._begin(args)
        return DuckFuture(self)

    def prepare(self, nbytes: int) -> Prepared:
        """A call with ``nbytes`` of arguments that are written in place. See Prepared. Raises InvalidArgument."""
        with self._guard:
            self._ready()
            return Prepared(self, self._line.prepare(argument.whole(nbytes, 0, messages.MOST_ARGS, "$.nbytes")))

    def clear(self) -> None:
        """Fills the output buffer with zeros. What the program keeps elsewhere stays."""
        with self._guard:
            self._ready()
            self._line.clear()
        self._answer(None)

    def _begin(self, args: Any) -> None:
        if type(args) is not bytes and getattr(getattr(args, "dtype", None), "hasobject", False):
            raise InvalidArgument("it holds Python objects, expected bytes or a packed array", path="$.args")
        with self._guard:
            self._ready()
            self._calls += 1
            try:
                self._line.begin(args)
            except TealError as error:
                raise self._seen(error) from None

    def _ready(self) -> None:
        """Raises Closed, Busy, or what opening the program anew raises."""
        if self._closed:
            raise Closed("the session is closed")
        if self._died:  # and some call has said so
            if not self._restart:
                raise Closed("the session's program died, and restart=False; open another one")
            self._again()
        elif self._line.busy:
            if self._line.over:  # nobody is left who could write how it ended
                raise self._seen(PeerDied("duck", "its process is gone"))
            raise Busy("a call of this session is still running; wait for it, or open another session")

    def _again(self) -> None:
        self._direct += self._line.direct_calls
        self._line.close()
        self._leave(kill=True)
        self._open()
        self._restarts += 1
        if self._mapped is not None:
            self._map(self._mapped, self._mapped_as)

    def _answer(self, timeout_ns: int | None) -> Tensor:
        try:
            if not self._line.wait(0 if timeout_ns is None else max(1, timeout_ns)):
                self._give_up()
                assert timeout_ns is not None
                raise DeadlineExceeded(
                    f"no answer within {timeout_ns / 1e9:g} s; the call was given up, and the program may still run"
                )
            return self._line.answer()
        except TealError as error:
            raise self._seen(error) from None

    def _give_up(self) -> None:
        with self._guard:
            self._given_up += 1
            self._line.give_up()
            if self._kill:
                self._duck._link.ask(messages.Close(self.number, kill=True))
                self._died = True

    def _seen(self, error: TealError) -> TealError:
        self._failed += 1
        if isinstance(error, KernelFailed) and not self._line.over:
            return error
        if not isinstance(error, (InvalidArgument, Busy, DeadlineExceeded)) or self._line.over:
            self._died = True
        return error

    # ---- buffers -----------------------------------------------------------------------------------------------------

    @property
    def ob(self) -> Tensor:
        """All of the output buffer: uint8. On this machine the memory itself, elsewhere what has come back of it."""
        with self._guard:
            self._ready()
            return self._line.ob()

    def map(self, x: Any) -> Session:
        """The input buffer of the calls from now on, read-only in the program; None: none. Returns the session.

        A tensor of ``duck.empty`` (or a view that begins on a page of one) is mapped where it is, on this machine.
        Everything else (arrays, bytes, a path, ``duck.put(x)``) is copied once, and counted in statistics(); a duck
        elsewhere keeps it under its SHA-256, and is not sent it a second time.
        Raises Busy while a call is out, InvalidArgument, QuotaExceeded, PeerDied.
        """
        with self._guard:
            self._ready()
            resolved = self._duck._resolved(x)
            if resolved is not None and resolved != "copy" and resolved == self._mapped_as:
                return self  # it is that memory already
            self._map(x, resolved)
            return self

    def _map(self, x: Any, resolved: Any) -> None:
        gone, self._gone = self._duck._segments.gone(self._gone)
        key, copied = _key_of(resolved), 0
        try:
            # What was copied for one map alone is the duck's to take away again.
            if key not in self._there or gone or self._mapped_as == "copy" or key is None or not self._line.use(key):
                copied = self._duck._map(messages.Map(self.number, gone=gone), resolved, x)
        except TealError:
            self._died = self._died or self._line.over
            raise
        if key is not None:
            self._there.add(key)
        self._maps += 1
        self._copies += copied > 0
        self._copied += copied
        self._mapped, self._mapped_as = x, resolved

    # ---- end ---------------------------------------------------------------------------------------------------------

    def statistics(self) -> SessionStatistics:
        """Counters of this session."""
        return SessionStatistics(
            self._calls + self._line.prepared_calls, self._failed, self._restarts, self._given_up, self._maps,
            self._copies, self._copied, self._line.last_program_ns, self._direct + self._line.direct_calls,
        )  # fmt: skip

    def close(self) -> None:
        """Ends the program: its duck_exit() runs, unless a call is still running. Views of answers stay readable."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._duck._sessions.discard(self)
            busy = self._line.busy
            self._line.close()
            self._blob.close()
        if os.getpid() == self._duck._pid:
            self._leave(kill=busy)

    def _leave(self, *, kill: bool) -> None:
        """The duck gives up what it keeps for the session, if it has not seen its end by itself."""
        with contextlib.suppress(Closed, ConnectionError, NotFound):
            self._duck._link.ask(messages.Close(self.number, kill=kill))

    def __del__(self) -> None:
        # Collected without a close(), in whatever thread, under whatever lock: the next open() tells the duck.
        if not getattr(self, "_closed", True) and hasattr(self, "number"):
            self._blob.close()
            self._duck._dropped.append((self.number, self._line.busy))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "died" if self._died else "open"
        return f"<teal.duck.Session {self.number} {self.name!r} at {self._duck.address}, {state}>"


def _key_of(resolved: Any) -> int | None:
    """What the box calls the mapping of this input buffer; None for a copy, and for none."""
    if isinstance(resolved, Place):
        return messages.segment_key(resolved.segment)
    digest = getattr(resolved, "digest", None)
    return None if digest is None else messages.digest_key(digest)
