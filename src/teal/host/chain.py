"""Outputs that are still to come, as inputs of another call: pipelines.

Theory of operation: an input that is an output of a request of the same session is a place (where that output will be)
and a link (whose it is). The worker that takes the request looks what came there, so nothing goes back through this
process, whatever the shape turns out to be. The slot keeps the memory it is to read, and its line waits for the other
one's, as with ``after=``. What comes from another pool or host is out of the workers' reach: this process passes it on,
and counts that (relay.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from teal import _core
from teal.errors import Cancelled, InvalidArgument
from teal.host import arguments
from teal.host.future import Future, FutureTensor

if TYPE_CHECKING:
    from teal.host.connection import PoolSession
    from teal.host.wire import Spec

TO_COME = (Future, FutureTensor)


class ToComeError(Exception):
    """Inputs that are still to come were given where the caller has to look again; never seen by users."""


class ElsewhereError(ToComeError):
    """They come from another session."""


class Sources:
    """The requests whose outputs one call takes, in the order of its inputs.

    stages: their models, by number of their lines.
    """

    __slots__ = ("_session", "futures", "slots", "stages")

    def __init__(self, session: PoolSession) -> None:
        self._session = session
        self.slots: list[_core.Slot] = []
        self.stages: dict[int, str] = {}
        self.futures: list[Future] = []

    def described(self, value: Future | FutureTensor, spec: Spec, path: str) -> tuple[Any, Any]:
        """As ``arguments.described``. Raises ElsewhereError, Cancelled when its request has ended without an answer."""
        future, index = (value, value._only(path)) if isinstance(value, Future) else (value._future, value._index)
        slot = future._slot
        if slot is not None and slot.session is self._session.core:
            number = next((k for k, one in enumerate(self.slots) if one is slot), len(self.slots))
            if (place := slot.to_come(index, number, future._generation)) is not None:
                if number == len(self.slots):
                    self.slots.append(slot)
                    self.futures.append(future)
                    self.stages[slot.index] = future._model.name
                made = future._model._output_specs[index]
                # Of an output of unknown size the plan has a stand-in for a dtype that is not in the signature.
                dtype = place.dtype if place.shape is not None else made.dtype
                return place, (place.key, dtype)
        if not future.done():
            raise ElsewhereError
        if (error := future.exception()) is not None:
            raise stage_failed(future, error)
        return arguments.described(future.result()[index], spec, path, self._session.core)


def stage_failed(future: Future, error: Exception) -> Cancelled:
    """What becomes of a request whose input did not come."""
    why = f"stage {future._model.name!r}, whose output it takes, ended with {type(error).__name__}: {error}"
    return Cancelled("pipeline", source="dependency", reason=why)


def check_pinned(value: Any, path: str) -> None:
    """Raises InvalidArgument for what a prepared call cannot take."""
    if isinstance(value, TO_COME):
        raise InvalidArgument(
            f"{value!r}: to come once, and a prepared call runs many times; give a tensor, or submit() it",
            path=path,
        )
