"""A call of a session that is under way."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar

from teal.errors import Cancelled, Closed, TealError
from teal.host.duration import nanoseconds
from teal.host.future import heard

if TYPE_CHECKING:
    from teal._core import Tensor
    from teal.duck.session import Session


class DuckFuture:
    """The answer to come of ``session.submit``. Thread-safe; awaitable in any asyncio loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._line = session._line
        self._number = session._line.generation
        self._settling = threading.RLock()
        self._outcome: Tensor | BaseException | None = None

    def result(self, timeout: float | str | None = None) -> Tensor:
        """Waits for the answer, a view as ``session.call`` returns. Raises what that raises.

        ``timeout``: TimeoutError when it passes first; the call goes on. Closed: a later call of the session has
        written over the answer before anybody asked for it.
        """
        until = None if timeout is None else time.monotonic_ns() + nanoseconds(timeout, "$.timeout")
        while self._outcome is None:
            left = 0 if until is None else max(1, until - time.monotonic_ns())
            if self._line.generation == self._number and not self._waited(left):
                raise TimeoutError(f"no answer within {timeout} s; the call goes on (cancel() gives it up)")
            self._settle()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def _waited(self, timeout_ns: int) -> bool:
        try:
            return self._line.wait(timeout_ns)
        except TealError as error:
            with self._settling:
                if self._outcome is None:
                    self._outcome = self._session._seen(error)
            return True

    def _settle(self) -> None:
        with self._settling:
            if self._outcome is not None:
                return
            if self._line.generation != self._number:
                self._outcome = Closed(
                    "a later call of the session has written over this answer; take each before the next"
                )
                return
            try:
                self._outcome = self._line.answer()
            except TealError as error:
                self._outcome = self._session._seen(error)

    def exception(self, timeout: float | str | None = None) -> BaseException | None:
        """Waits, and returns the error that ``result`` would raise, or None."""
        try:
            self.result(timeout)
        except TealError as error:
            return error
        return None

    def done(self) -> bool:
        """Has the call ended, one way or the other?"""
        if self._outcome is not None or self._line.generation != self._number:
            return True
        try:
            return self._line.look()
        except TealError as error:
            with self._settling:
                if self._outcome is None:
                    self._outcome = self._session._seen(error)
            return True

    def cancel(self) -> bool:
        """Gives the call up, unless it has ended. True: its answer is dropped.

        The program runs on, and the session is Busy until it returns or the session's own bound ends it. Of a session
        that was opened with cancel="kill" the program is ended at once, and opened anew by the next call.
        """
        with self._settling:
            if self.done():
                return False
            self._session._give_up()
            self._outcome = Cancelled(self._session.name)
            return True

    def cancelled(self) -> bool:
        """Did cancel() end it?"""
        return isinstance(self._outcome, Cancelled)

    def add_done_callback(self, callback: Callable[[DuckFuture], Any]) -> None:
        """Calls ``callback(self)`` from another thread once the call has ended (at once if it has)."""
        if self.done():
            callback(self)
        else:
            _Listener.of(self._session).add(self, callback)

    def __await__(self) -> Generator[Any, None, Tensor]:
        if not self.done():
            import asyncio

            try:
                yield from heard(lambda ended: _Listener.of(self._session).add(self, lambda _: ended()))
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()


class _Listener:
    """A session's thread that waits for calls which somebody wants to hear of; made when the first one does."""

    _all: ClassVar[weakref.WeakKeyDictionary[Session, _Listener]] = weakref.WeakKeyDictionary()
    _making = threading.Lock()

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[DuckFuture, Callable[[DuckFuture], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="teal-duck-listener", daemon=True).start()

    @classmethod
    def of(cls, session: Session) -> _Listener:
        with cls._making:
            found = cls._all.get(session)
            if found is None:
                found = cls._all[session] = cls()
                weakref.finalize(session, found._queue.put, None)
            return found

    def add(self, future: DuckFuture, callback: Callable[[DuckFuture], Any]) -> None:
        self._queue.put((future, callback))

    def _loop(self) -> None:
        while (item := self._queue.get()) is not None:
            future, callback = item
            future.exception()
            callback(future)
            del item, future, callback
