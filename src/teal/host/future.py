"""A request that is under way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from teal import _core
from teal.errors import Cancelled, InvalidArgument, TealError
from teal.host.arguments import nanoseconds

if TYPE_CHECKING:
    from teal.host.model import Model
    from teal.host.outputs import Outputs
    from teal.host.receivers import Receivers


def heard(tell: Callable[[Callable[[], None]], None]) -> Generator[Any, None, None]:
    """Suspends a coroutine until the notifier calls back; ``tell`` hands it the callback."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def ended() -> None:  # on the notifier's thread; the loop may be closed by then
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(wake)

    tell(ended)
    yield from waiter.__await__()


_settling = threading.Lock()  # two threads may ask for one answer; one that was spilled can be fetched once


class Future:
    """The answer to come of ``model.submit(...)``. Thread-safe; awaitable in any asyncio loop."""

    __slots__ = ("__weakref__", "_model", "_out", "_outcome", "_slot")

    def __init__(self, model: Model, slot: _core.Slot, out: Receivers | None = None) -> None:
        self._model = model
        self._out = out
        self._slot: _core.Slot | None = slot  # None once settled: its memory is kept by the outputs, or by nobody
        self._outcome: Outputs | TealError | None = None

    def result(self, timeout: float | None = None) -> Outputs:
        """Waits for the answer. ``timeout`` in seconds: TimeoutError when it passes first; the request goes on.

        Raises what ended the request: DeadlineExceeded, Cancelled, PeerDied, KernelFailed, InvalidArgument, …
        """
        slot = self._slot
        if slot is not None:
            until = 0 if timeout is None else time.monotonic_ns() + max(1, nanoseconds(timeout, "$.timeout"))
            if not slot.wait(until):
                raise TimeoutError(f"no answer within {timeout} s; the request goes on (use deadline= to end it)")
            self._settle()
        if isinstance(self._outcome, TealError):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def exception(self, timeout: float | None = None) -> TealError | None:
        """Waits, and returns the error that ``result`` would raise, or None."""
        try:
            self.result(timeout)
        except TealError as error:
            return error
        return None

    def done(self) -> bool:
        """Has the request ended, one way or the other?"""
        slot = self._slot
        return slot is None or slot.ended()

    def running(self) -> bool:
        """Is a kernel with effects running it, so that it cannot be cancelled any more?"""
        slot = self._slot
        return slot is not None and not slot.ended() and slot.running()

    def cancel(self) -> bool:
        """Ends the request unless it has ended. True: it will not be answered, and it never starts any more.

        False: it has ended already, or a kernel with effects is running it. A pure kernel that is running finishes
        unseen.
        """
        slot = self._slot
        return slot is not None and slot.cancel()

    def cancelled(self) -> bool:
        """Did cancel() (or the host) end it?"""
        return self.done() and isinstance(self.exception(), Cancelled)

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Calls ``callback(self)`` from another thread once the request has ended (at once if it has)."""
        if not callable(callback):
            raise InvalidArgument(f"{callback!r}, expected a function of the future", path="$.callback")
        slot = self._slot
        if slot is None or slot.ended():
            callback(self)
        else:
            self._model._notifier.add(slot, lambda: callback(self))

    def _settle(self) -> None:
        with _settling:
            if self._slot is None:
                return
            try:
                self._outcome = self._model._ended(self._slot, self._out)
            except TealError as error:
                self._outcome = error
            self._slot = self._out = None

    def __await__(self) -> Generator[Any, None, Outputs]:
        slot = self._slot
        if slot is not None and not slot.ended():
            try:
                yield from heard(lambda ended: self._model._notifier.add(slot, ended))
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()
