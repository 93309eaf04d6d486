"""A request that this process submits once others have ended that its pool cannot see.

Theory of operation: workers map the memory of their own pool's sessions only. When an input comes from another pool or
host, the notifier's thread hears of the end and submits the request then, with the outputs as ordinary inputs (copied
once, and counted). Until then the future has no slot: what is asked of it is answered here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from teal.errors import Cancelled, Closed, DeadlineExceeded, InvalidArgument, TealError
from teal.host.arguments import nanoseconds
from teal.host.future import Future, heard

if TYPE_CHECKING:
    from teal.host.model import Model
    from teal.host.outputs import Outputs


class Relay(Future):
    """A Future whose request is submitted by this process. ``launch(seconds left)``: submits it."""

    __slots__ = ("_begun", "_callbacks", "_launch", "_left", "_lock", "_until")

    def __init__(
        self,
        model: Model,
        sources: Sequence[Future],
        launch: Callable[[float | None], Future],
        deadline: float | None,
    ) -> None:
        super().__init__(model, None)
        self._launch: Callable[[float | None], Future] | None = launch
        self._until = 0 if deadline is None else time.monotonic_ns() + nanoseconds(deadline)
        self._begun = threading.Event()  # submitted, or ended without
        self._lock = threading.Lock()  # guards _launch, _callbacks, _left
        self._callbacks: list[Callable[[], None]] = []
        self._left = len(sources)
        for source in sources:
            source.add_done_callback(self._source_ended)

    def _source_ended(self, _: Future) -> None:
        with self._lock:
            self._left -= 1
            if self._left > 0 or self._launch is None:
                return
            launch, self._launch = self._launch, None
        left = None if self._until == 0 else (self._until - time.monotonic_ns()) / 1e9
        try:
            self._adopt(launch(left))
        except TealError as error:
            self._outcome = error
        except Exception:  # the interpreter or the connection goes
            self._outcome = Closed("the connection to the host was closed before the answer came")
        self._begin()

    def _begin(self) -> None:
        with self._lock:
            self._begun.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def _end(self, error: TealError) -> bool:
        """Without having been submitted. False: it was."""
        with self._lock:
            if self._launch is None:
                return False
            self._launch = None
        self._outcome = error
        self._begin()
        return True

    def _late(self) -> bool:
        if self._until == 0 or time.monotonic_ns() < self._until:
            return False
        return self._end(DeadlineExceeded(f"{self._model.name}: the deadline passed before the answer came"))

    def result(self, timeout: float | None = None) -> Outputs:
        """See Future.result."""
        until = None if timeout is None else time.monotonic_ns() + max(1, nanoseconds(timeout, "$.timeout"))
        while not self._begun.is_set():
            ends = [end for end in (until, self._until or None) if end is not None]
            self._begun.wait(max(0.0, (min(ends) - time.monotonic_ns()) / 1e9) if ends else None)
            if self._begun.is_set() or self._late():
                break
            if until is not None and time.monotonic_ns() >= until:
                raise TimeoutError(f"no answer within {timeout} s; the request goes on (use deadline= to end it)")
        return super().result(None if until is None else max(0.0, (until - time.monotonic_ns()) / 1e9))

    def done(self) -> bool:
        """Has the request ended, one way or the other?"""
        return (self._begun.is_set() or self._late()) and super().done()

    def cancel(self) -> bool:
        """See Future.cancel."""
        why = Cancelled(self._model.name, source="client", reason="cancel() was called")
        if self._end(why):
            return True
        self._begun.wait()
        return super().cancel()

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """See Future.add_done_callback."""
        if not callable(callback):
            raise InvalidArgument(f"{callback!r}, expected a function of the future", path="$.callback")
        self._when_begun(lambda: Future.add_done_callback(self, callback))

    def _when_begun(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._begun.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def __await__(self) -> Generator[Any, None, Outputs]:
        if not self._begun.is_set():
            yield from heard(self._when_begun)
        return (yield from super().__await__())
