"""Events: what requests and people wait for that is no request.

Theory of operation: an event is a completion line of a session without a request (core/host/client.hpp). Workers look
at the line itself before they run what waits for it, so a signal costs one store, and a syscall only where somebody
sleeps. The end of a request is an event as well: ``after=`` takes futures. What belongs to another pool or host is not
mapped by the workers here; it is passed on by this process, from the thread that hears of its end.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from teal import _core
from teal.errors import Cancelled, InvalidArgument
from teal.host.arguments import nanoseconds
from teal.host.future import Future, heard

if TYPE_CHECKING:
    from teal.host.connection import PoolSession


class Event:
    """Something that comes once: ``model.submit(..., after=event)`` runs when it has. Made by ``host.event()``.

    Thread-safe; awaitable in any asyncio loop. One that is dropped before it came cancels what waits for it.
    """

    __slots__ = ("__weakref__", "_core", "_notifier")

    def __init__(self, session: PoolSession) -> None:
        self._core = _core.Event(session.core)
        self._notifier = session.notifier

    def signal(self) -> bool:
        """It has come: what waits for it may run. False when it had ended before. Raises Closed after fork."""
        return self._core.signal()

    def cancel(self) -> bool:
        """It will not come: what waits for it ends with Cancelled. False when it had ended before."""
        return self._core.cancel()

    def rearm(self) -> None:
        """It has not come yet, once more. Raises Busy while it has not ended."""
        self._core.rearm()

    def done(self) -> bool:
        """Has it come, or was it cancelled?"""
        return self._core.ended()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has come; ``timeout`` in seconds. Raises TimeoutError, Cancelled, InvalidArgument."""
        until = 0 if timeout is None else time.monotonic_ns() + max(1, nanoseconds(timeout, "$.timeout"))
        if not self._core.wait(until):
            raise TimeoutError(f"the event did not come within {timeout} s")
        self._check()

    def _check(self) -> None:
        if not self._core.came():
            raise Cancelled("event", source="client", reason="cancel() was called")

    def __await__(self) -> Generator[object, None, None]:
        if not self._core.ended():
            yield from heard(lambda ended: self._notifier.add_event(self._core, ended))
        self._check()

    def __repr__(self) -> str:
        state = "came" if self._core.came() else "cancelled" if self._core.ended() else "not yet"
        return f"<teal.Event {state}>"


def awaited(session: PoolSession, after: object) -> list[_core.Slot | _core.Event]:
    """What ``submit_after`` takes for the user's ``after``. Raises InvalidArgument."""
    if after is None:
        return []
    several = isinstance(after, Sequence) and not isinstance(after, str | bytes)
    items = list(after) if isinstance(after, Sequence) and several else [after]
    found = [_line_of(session, item, f"$.after[{i}]" if several else "$.after") for i, item in enumerate(items)]
    return [line for line in found if line is not None]


def _line_of(session: PoolSession, item: object, path: str) -> _core.Slot | _core.Event | None:
    if isinstance(item, Event):
        return item._core if item._core.session is session.core else _relayed(session, item)
    if not isinstance(item, Future):
        raise InvalidArgument(
            f"{type(item).__name__}, expected a Future of model.submit() or an Event of host.event(), "
            "or a sequence of these",
            path=path,
        )
    slot = item._slot
    if slot is None and not item.done():  # it waits in this process itself
        return _relayed(session, item)
    if slot is None:  # settled: its memory may serve another call by now
        if item.exception() is None:
            return None
        event = _core.Event(session.core)
        event.cancel()
        return event
    return slot if slot.session is session.core else _relayed(session, item)


def _relayed(session: PoolSession, item: Event | Future) -> _core.Event:
    """An event of this session that ends as ``item`` of another one does."""
    event = _core.Event(session.core)

    def pass_on(*_: object) -> None:
        came = item._core.came() if isinstance(item, Event) else item.exception() is None
        event.signal() if came else event.cancel()

    if isinstance(item, Future):
        item.add_done_callback(pass_on)
    elif item.done():
        pass_on()
    else:
        item._notifier.add_event(item._core, pass_on)
    return event
