"""A model's slots, by what they are for.

Theory of operation: a home (core/host/slot_home.hpp) loans slots of one set of shapes. Calls over memory that their
caller holds already have homes of their own, one for each set of places: the same tensors, or others at the same
places, find the slot, its stamp and so the worker's binding again. Such a home keeps none of that memory. When some of
it is gone, the home is forgotten as soon as another one is made. What outputs of unknown size needed is remembered by
shapes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from teal import _core
from teal.errors import QuotaExceeded
from teal.host.arguments import room
from teal.host.plan import Places, PlanEntry, Shapes, plan_bytes, plan_inputs, plan_outputs

if TYPE_CHECKING:
    from teal.host.connection import PoolSession
    from teal.host.receivers import Receivers
    from teal.host.wire import Spec

_MOST_HOMES = 256  # shapes remembered per model
_MOST_PLACED = 64  # sets of places
_MOST_CHAINED = 256  # the same of outputs to come: a pipeline has one for each slot that is out in the stage before
# Idle slots of one set of shapes: what comes in bursts is not bound anew each time. They go when room is short.
_KEPT, _MOST_KEPT, _KEPT_BYTES = 64, 512, 4 << 20
_KEPT_PLACED = 8  # idle slots of one set of places


def _given(item: Any, place: _core.Place | None) -> tuple[str | None, tuple[int, ...] | None, int] | None:
    """dtype, shape and bytes of an input; an output to come has the bytes planned for it."""
    if place is None:
        return item  # type: ignore[no-any-return]
    if place.link is not None:
        return item[1], place.shape, place.nbytes
    return place.dtype, place.shape, place.nbytes if place.dtype == "BYTES" else 0


class _Home:
    """The slots of one set of shapes, and what makes one."""

    __slots__ = ("core", "nbytes", "shapes")

    def __init__(self, core: _core.SlotHome, nbytes: int, shapes: Shapes) -> None:
        self.core = core
        self.nbytes = nbytes
        self.shapes = shapes


class Homes:
    """Loans the slots of one model handle. ``check``: raises where no slot may be made any more."""

    def __init__(self, session: PoolSession, index: int, pinned: int, check: Callable[[], None]) -> None:
        self._session = session
        self._index = index
        self._pinned = pinned
        self._check = check
        self._lock = threading.Lock()  # guards what follows where it changes
        self._homes: dict[Shapes, _Home] = {}
        self._placed: dict[Any, _Home] = {}
        self._chained: dict[Any, _Home] = {}
        self._capacities: dict[Shapes, dict[int, int]] = {}
        self._unplannable: set[int] = set()

    def describe(self, inputs: Sequence[Spec], outputs: Sequence[Spec], *, may_spin: bool) -> None:
        """The signature. may_spin: the engine leaves a core for a caller that spins while it waits."""
        self._inputs = inputs
        self._outputs = outputs
        self._nowhere: list[_core.Place | None] = [None] * len(outputs)
        self._may_spin = may_spin

    def loan(self, shapes: Shapes) -> _core.Slot:
        """A slot with memory for inputs of these shapes, and for their outputs. Raises QuotaExceeded."""
        home = self._homes.get(shapes)
        if home is None:
            home = self._made(shapes)
        try:
            slot = home.core.loan()
        except QuotaExceeded:  # every line is taken, though perhaps by idle slots of other shapes
            slot = None
        return slot or self._session.with_room(home.core.loan, home.nbytes)

    def loan_over(self, given: Sequence[Any], places: list[_core.Place | None], out: Receivers | None) -> _core.Slot:
        """A slot over these places. ``given``: of each input its place's key, or (dtype, shape, bytes), or None."""
        key = (*given, None if out is None else out.key)
        home = self._placed.get(key) or self._chained.get(key)
        if home is None:
            home = self._made_over(key, places, out)
        holds = places + (self._nowhere if out is None else out.places)
        try:
            slot = home.core.loan(holds)
        except QuotaExceeded:
            slot = None
        return slot or self._session.with_room(lambda: home.core.loan(holds), home.nbytes)

    def forget_idle(self) -> None:
        """Gives the memory and lines of slots that nobody holds back to the session."""
        with self._lock:
            self._placed.clear()
            self._chained.clear()
            homes = list(self._homes.values())
        for home in homes:
            home.core.forget_idle()

    def learn(self, slot: _core.Slot, sizes: Mapping[int, int]) -> None:
        """This slot's outputs did not fit: ``sizes`` in bytes, by output. Slots to come are made for them.

        Who calls on this slot's inputs again gets one of those, over the same inputs.
        """
        slot.outgrow()
        with self._lock:
            for homes in (self._homes, self._placed, self._chained):
                key = next((key for key, home in homes.items() if home.core.made(slot)), None)
                if key is None:
                    continue  # another thread's call has taught us already
                shapes = homes.pop(key).shapes
                while len(self._capacities) >= _MOST_HOMES:
                    self._capacities.pop(next(iter(self._capacities)))
                learned = self._capacities.setdefault(shapes, {})
                for index, size in sizes.items():
                    learned[index] = max(room(size), learned.get(index, 0))
                    self._unplannable.add(index)

    def _made(self, shapes: Shapes) -> _Home:
        with self._lock:
            home = self._planned(shapes, (), ())
            while len(self._homes) >= _MOST_HOMES:
                self._homes.pop(next(iter(self._homes)))
            self._homes[shapes] = home
        return home

    def _made_over(self, key: Any, places: Places, out: Receivers | None) -> _Home:
        shapes: Shapes = tuple(_given(item, place) for item, place in zip(key[:-1], places, strict=True))
        with self._lock:
            for other in [other for other, home in self._placed.items() if home.core.deserted()]:
                del self._placed[other]
            home = self._planned(shapes, places, () if out is None else out.places)
            chained = any(place is not None and place.link is not None for place in places)
            homes, most = (self._chained, _MOST_CHAINED) if chained else (self._placed, _MOST_PLACED)
            while len(homes) >= most:
                homes.pop(next(iter(homes)))
            homes[key] = home
        return home

    def plans(
        self, shapes: Shapes, places: Places = (), receiving: Places = ()
    ) -> tuple[list[PlanEntry], list[PlanEntry]]:
        """Plans of inputs and outputs for a call with these shapes. Raises InvalidArgument."""
        inputs, extents = plan_inputs(self._inputs, shapes, places)
        by_name: dict[str, PlanEntry] = {spec.name: plan for spec, plan in zip(self._inputs, inputs, strict=True)}
        capacities = self._capacities.get(shapes, {})
        return inputs, plan_outputs(self._outputs, by_name, extents, capacities, self._unplannable, receiving)

    def _planned(self, shapes: Shapes, places: Places, receiving: Places) -> _Home:
        self._check()
        inputs, outputs = self.plans(shapes, places, receiving)
        nbytes = plan_bytes(inputs) + plan_bytes(outputs)
        keep = _KEPT_PLACED if places or receiving else min(max(_KEPT, _KEPT_BYTES // max(nbytes, 1)), _MOST_KEPT)
        core = _core.SlotHome(self._session.core, self._index, self._pinned, inputs, outputs, self._may_spin, keep)
        return _Home(core, nbytes, shapes)
