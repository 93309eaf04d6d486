"""A request that is under way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from teal import _core
from teal.errors import TealError

if TYPE_CHECKING:
    from teal.host.model import Model
    from teal.host.outputs import Outputs


class Future:
    """The answer to come of ``model.submit(...)``. Thread-safe; awaitable in any asyncio loop."""

    __slots__ = ("_callbacks", "_model", "_outcome", "_slot")

    def __init__(self, model: Model, slot: _core.Slot) -> None:
        self._model = model
        self._slot = slot
        self._outcome: Outputs | TealError | None = None

    def result(self, timeout: float | None = None) -> Outputs:
        """Waits for the answer. ``timeout`` in seconds: TimeoutError when it passes first; the request goes on.

        Raises what ended the request: DeadlineExceeded, Cancelled, PeerDied, KernelFailed, InvalidArgument, …
        """
        if self._outcome is None:
            until = 0 if timeout is None else time.monotonic_ns() + max(1, int(timeout * 1e9))
            if not self._slot.wait(until):
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
        return self._outcome is not None or self._slot.ended()

    def running(self) -> bool:
        """Is a kernel with effects running it, so that it cannot be cancelled any more?"""
        return not self.done() and self._slot.running()

    def cancel(self) -> bool:
        """Ends the request unless it has ended. True: it will not be answered, and it never starts any more.

        False: it has ended already, or a kernel with effects is running it. A pure kernel that is running finishes
        unseen.
        """
        return self._outcome is None and self._slot.cancel()

    def cancelled(self) -> bool:
        """Did cancel() (or the host) end it?"""
        from teal.errors import Cancelled

        return self.done() and isinstance(self.exception(), Cancelled)

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Calls ``callback(self)`` from another thread once the request has ended (at once if it has)."""
        if self.done():
            callback(self)
        else:
            self._model._notifier.add(self._slot, lambda: callback(self))

    def _settle(self) -> None:
        try:
            self._outcome = self._model._ended(self._slot)
        except TealError as error:
            self._outcome = error

    def __await__(self) -> Generator[Any, None, Outputs]:
        if not self.done():
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def ended() -> None:  # on the notifier's thread; the loop may be closed by then
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(wake)

            self._model._notifier.add(self._slot, ended)
            try:
                yield from waiter.__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()
