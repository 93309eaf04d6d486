"""A request that is under way."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from teal import _core
from teal.errors import Cancelled, InvalidArgument, NotFound, TealError
from teal.host.arguments import nanoseconds
from teal.host.endings import DONE, SPILLED

if TYPE_CHECKING:
    from teal._core import Tensor
    from teal.host.model import Model
    from teal.host.outputs import Outputs
    from teal.host.receivers import Receivers


def heard(tell: Callable[[Callable[[], None]], None]) -> Generator[Any, None, None]:
    """Suspends a coroutine until the notifier calls back; ``tell`` hands it the callback."""
    import asyncio  # only here: whoever awaits has it, and nobody else pays for it

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
    """The answer to come of ``model.submit(...)``. Thread-safe; awaitable in any asyncio loop.

    It may be an input of another call, before it has ended: ``b = m2.submit(a)``, or with one of several outputs
    ``m2.submit(x=a["logits"])``. That call runs when this one has ended, without a way back to this process.
    """

    __slots__ = ("__weakref__", "_generation", "_model", "_out", "_outcome", "_slot", "_stages")

    def __init__(
        self,
        model: Model,
        slot: _core.Slot | None,
        out: Receivers | None = None,
        stages: Mapping[int, str] | None = None,
    ) -> None:
        """stages: models of the requests whose outputs it takes, by number of their lines."""
        self._model = model
        self._out = out
        self._slot = slot  # None once settled: its memory is kept by the outputs, or by nobody
        self._generation = 0 if slot is None else slot.generation
        self._stages = stages
        self._outcome: Outputs | TealError | None = None

    @classmethod
    def ended(cls, model: Model, error: TealError) -> Future:
        """One that ended before it began."""
        future = cls(model, None)
        future._outcome = error
        return future

    def _adopt(self, other: Future) -> None:
        """The request of another future, which nobody else has."""
        self._out, self._stages = other._out, other._stages
        self._generation, self._outcome, self._slot = other._generation, other._outcome, other._slot

    def output(self, which: int | str) -> FutureTensor:
        """One output, by number or name, as an input of another call. Raises NotFound."""
        names = self._model._output_names
        if isinstance(which, str):
            if which not in names:
                raise NotFound(f"output {which!r}; the outputs are {list(names)}")
            return FutureTensor(self, names.index(which))
        if not isinstance(which, int) or not 0 <= which < len(names):
            raise NotFound(f"output {which!r}; there are {len(names)}: {list(names)}")
        return FutureTensor(self, which)

    __getitem__ = output

    def _only(self, path: str) -> int:
        """The number of the output of a model that has one. Raises InvalidArgument."""
        names = self._model._output_names
        if len(names) != 1:
            raise InvalidArgument(
                f"a future of {self._model.name!r}, which has the outputs {list(names)}; give one, as in "
                f"future[{names[0] if names else ''!r}]",
                path=path,
            )
        return 0

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
                self._outcome = self._model._ended(self._slot, self._out, self._stages)
            except TealError as error:
                self._outcome = error
            chained = self._stages is not None
            self._slot = self._out = self._stages = None
        if chained:
            self._model._session.look_at_lent()

    def _forget_spill(self) -> None:
        """An output larger than planned that went to another call: nobody may ever ask for it, and it counts."""
        slot = self._slot
        if slot is not None and slot.ended() and slot.result()[:2] == (DONE, SPILLED):
            self._settle()

    def __await__(self) -> Generator[Any, None, Outputs]:
        slot = self._slot
        if slot is not None and not slot.ended():
            import asyncio

            try:
                yield from heard(lambda ended: self._model._notifier.add(slot, ended))
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a teal.Future belongs to its process; give others what result() returns, as NumPy arrays")


class FutureTensor:
    """One output of a request that is under way, as an input of another call. Made by ``future["name"]``."""

    __slots__ = ("_future", "_index")

    def __init__(self, future: Future, index: int) -> None:
        self._future = future
        self._index = index

    def result(self, timeout: float | None = None) -> Tensor:
        """Waits for it; see Future.result."""
        return self._future.result(timeout)[self._index]

    def __repr__(self) -> str:
        return f"<teal.FutureTensor {self._future._model._output_names[self._index]!r} of {self._future._model.name!r}>"
