"""The memory of a graph's calls: prepared slots, and torch tensors over them.

Theory of operation: a lane is one slot with its prepared call. Its inputs are filled by one copy each; its outputs are
torch tensors made once, and what a caller gets are aliases of them. How many tensors show a storage says whether the
caller has let go of them; then the lane may be used again, else another one is, up to 8. Whoever holds more results
than that gets copies, in lanes that nobody sees. Threads that call at the same time take lanes of their own. A large
input that lies in Teal's memory already (a result of another graph, or of the host's) is not copied: then the call
takes a slot over that place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from teal import _core
from teal.compile.program import DTYPES, Layout
from teal.compile.record import record
from teal.host.model import Model
from teal.host.plan import PlanEntry

_use_count = torch._C._storage_Use_Count
_IN_PLACE = 32 * 1024  # bytes of an input from which on its place is looked up: below, a copy is faster
_MOST_PLACED = 32  # sets of places whose slots are kept
_MOST_SHOWN = 8  # lanes of one set of shapes whose outputs callers hold


class Lane:
    """One slot. ``run(arguments)`` fills it, calls, and returns a tensor for each of the kernel's outputs."""

    __slots__ = ("_bases", "_call", "_counted", "_fills", "_open", "_slot", "hidden")

    def __init__(self, model: Model, inputs: Sequence[Given], outputs: Sequence[Taken], hidden: bool) -> None:
        home = _home(model, inputs, outputs, {})
        slot = model._session.with_room(home.loan, _room(inputs, outputs))
        self._slot = slot
        self._call = _core.Call(slot, (), model._ended, 0, 0)
        self._fills = [(one.at, i, one.nbytes, one.stride, _view(slot.input(i), one)) for i, one in enumerate(inputs)]
        self._bases = [_view(slot.output(i), one) for i, one in enumerate(outputs)]
        storages = [base.untyped_storage()._cdata for base in self._bases]
        self._counted = [(storage, _use_count(storage)) for storage in storages]
        self._open = [one.open for one in outputs]
        self.hidden = hidden

    def idle(self) -> bool:
        """Does nobody show what it returned last?"""
        for storage, quiet in self._counted:  # noqa: SIM110 (a generator costs more than what it does)
            if _use_count(storage) != quiet:
                return False
        return True

    def run(self, arguments: list[Any]) -> list[torch.Tensor]:
        slot = self._slot
        for at, index, nbytes, stride, view in self._fills:
            given = arguments[at]
            if given.stride() == stride and given.nbytes == nbytes:
                slot.fill(index, given.data_ptr(), nbytes)
            else:
                view.copy_(given)
                record.count("copies_in")
        return self._results()

    def run_padded(self, arguments: list[Any], rows: int) -> list[torch.Tensor]:
        for at, _, _, _, view in self._fills:
            given = arguments[at]
            (view if view.shape == given.shape else view.narrow(0, 0, rows)).copy_(given)
            self._slot.count_copy(given.nbytes)
        return [
            made.narrow(0, 0, rows) if open_ else made for made, open_ in zip(self._results(), self._open, strict=True)
        ]

    def _results(self) -> list[torch.Tensor]:
        self._call()
        if self.hidden:
            record.count("copies_out", len(self._bases))
            return [base.clone() for base in self._bases]
        return [base.detach() for base in self._bases]


class Given:
    """An input with its sizes of one call. ``at``: its position in the arguments."""

    __slots__ = ("at", "dtype", "nbytes", "open", "order", "packed", "shape", "stride")

    def __init__(self, at: int, layout: Layout, shape: tuple[int, ...]) -> None:
        self.at = at
        self.dtype = DTYPES[layout.dtype]
        self.shape = shape
        self.packed = layout.packed(shape)
        self.order = layout.order
        self.open = bool(layout.shape) and not isinstance(layout.shape[0], int)  # its first extent is a symbol
        self.stride = _strides(shape, layout.order)
        self.nbytes = torch.Size(shape).numel() * layout.dtype.itemsize


class Taken(Given):
    """An output with its sizes."""

    __slots__ = ()

    def __init__(self, layout: Layout, shape: tuple[int, ...]) -> None:
        super().__init__(-1, layout, shape)


class Lanes:
    """Of one set of shapes."""

    def __init__(self, model: Model, inputs: Sequence[Given], outputs: Sequence[Taken]) -> None:
        self._model = model
        self._inputs = inputs
        self._outputs = outputs
        self._shown: deque[Lane] = deque()
        self._hidden: deque[Lane] = deque()
        self._made = 0
        self._large = [(i, one) for i, one in enumerate(inputs) if one.nbytes >= _IN_PLACE]
        self._placed: dict[Any, _core.SlotHome] = {}

    def run(self, arguments: list[Any]) -> list[torch.Tensor]:
        if self._large and (places := self._places(arguments)):
            return self._run_over(places, arguments)
        lane = self._take()
        outputs = lane.run(arguments)  # when it raises, the lane goes with it
        (self._hidden if lane.hidden else self._shown).append(lane)
        return outputs

    def run_padded(self, arguments: list[Any], rows: int) -> list[torch.Tensor]:
        """The same with fewer rows than there is memory for: what is behind them is whatever was there."""
        lane = self._take()
        outputs = lane.run_padded(arguments, rows)
        (self._hidden if lane.hidden else self._shown).append(lane)
        return outputs

    def _take(self) -> Lane:
        shown = self._shown
        for _ in range(len(shown)):
            try:
                lane = shown.popleft()
            except IndexError:  # other threads have them
                break
            if lane.idle():
                return lane
            shown.append(lane)
        if self._made < _MOST_SHOWN:
            self._made += 1
            return Lane(self._model, self._inputs, self._outputs, hidden=False)
        try:
            return self._hidden.popleft()
        except IndexError:
            return Lane(self._model, self._inputs, self._outputs, hidden=True)

    def _places(self, arguments: list[Any]) -> dict[int, tuple[_core.Place, int]]:
        """Of inputs that lie in memory of this client at the host: the place, and where in it they begin."""
        places = {}
        session = self._model._session.core
        for i, one in self._large:
            given = arguments[one.at]
            if given.stride() != one.stride:
                continue
            address = given.data_ptr()
            tensor = session.tensor_at(address, one.nbytes)
            if tensor is not None and (place := session.place_of(tensor)) is not None:
                begin = address - tensor.address
                if (place.offset + begin) % given.element_size() == 0:
                    places[i] = (place, begin)
        return places

    def _run_over(self, places: dict[int, tuple[_core.Place, int]], arguments: list[Any]) -> list[torch.Tensor]:
        """A call with inputs where they are. Whoever called holds them until it returns."""
        holds: list[_core.Place | None] = [places[i][0] if i in places else None for i in range(len(self._inputs))]
        holds += [None] * len(self._outputs)
        home = self._home_over(places)
        slot = self._model._session.with_room(lambda: home.loan(holds), _room(self._inputs, self._outputs))
        for i, one in enumerate(self._inputs):
            if i not in places:
                _view(slot.input(i), one).copy_(arguments[one.at])
                slot.count_copy(one.nbytes)
        slot.submit(0, 0)
        slot.wait(0)
        made = self._model._ended(slot)
        record.count("in_place", len(places))
        return [_view(tensor, one) for tensor, one in zip(made, self._outputs, strict=True)]

    def _home_over(self, places: dict[int, tuple[_core.Place, int]]) -> _core.SlotHome:
        key = tuple((i, place.region, place.offset + begin) for i, (place, begin) in places.items())
        home = self._placed.get(key)
        if home is None:
            while len(self._placed) >= _MOST_PLACED:
                self._placed.pop(next(iter(self._placed)))
            at = {i: (place.region, place.offset + begin) for i, (place, begin) in places.items()}
            home = self._placed[key] = _home(self._model, self._inputs, self._outputs, at)
        return home


def _room(inputs: Sequence[Given], outputs: Sequence[Given]) -> int:
    """Bytes that a slot takes, at most."""
    return sum(one.nbytes + 512 for side in (inputs, outputs) for one in side) + 65536


def _home(
    model: Model, inputs: Sequence[Given], outputs: Sequence[Given], places: dict[int, tuple[int, int]]
) -> _core.SlotHome:
    """What makes slots for these inputs and outputs; ``places``: region and offset of inputs, by number."""
    given: list[PlanEntry] = [(one.dtype, one.packed, 0, 0, None, places.get(i)) for i, one in enumerate(inputs)]
    taken: list[PlanEntry] = [(one.dtype, one.packed, 0, 0, None, None) for one in outputs]
    keep = 8 if places else 64
    return _core.SlotHome(model._session.core, model._index, model._pinned, given, taken, model._homes._may_spin, keep)


def _strides(shape: tuple[int, ...], order: tuple[int, ...] | None) -> tuple[int, ...]:
    """Of a dense tensor whose dimensions lie in this order."""
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order if order is not None else range(len(shape))):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


def _view(tensor: _core.Tensor | None, one: Given) -> torch.Tensor:
    """A slot's memory as its user sees it."""
    assert tensor is not None
    view = torch.utils.dlpack.from_dlpack(tensor)
    return view if one.order is None else view.as_strided(one.shape, one.stride)
