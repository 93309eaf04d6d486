"""The memory of a graph's calls: prepared slots, and torch tensors over them.

Theory of operation: a lane is one slot with its prepared call. Its inputs are filled by one copy each; its outputs are
torch tensors made once, and what a caller gets are aliases of them. How many tensors show a storage says whether the
caller has let go of them; then the lane may be used again, else another one is, up to 8. Whoever holds more results
than that gets copies, in lanes that nobody sees. Threads that call at the same time take lanes of their own.
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
_MOST_SHOWN = 8  # lanes of one set of shapes whose outputs callers hold


class Lane:
    """One slot. ``run(arguments)`` fills it, calls, and returns a tensor for each of the kernel's outputs."""

    __slots__ = ("_bases", "_call", "_counted", "_fills", "_slot", "hidden")

    def __init__(self, model: Model, inputs: Sequence[Given], outputs: Sequence[Taken], hidden: bool) -> None:
        session = model._session
        plans: list[list[PlanEntry]] = [
            [(one.dtype, one.packed, 0, 0, None, None) for one in side] for side in (inputs, outputs)
        ]
        home = _core.SlotHome(session.core, model._index, model._pinned, plans[0], plans[1], model._homes._may_spin, 64)
        slot = session.with_room(home.loan, sum(one.nbytes + 512 for side in (inputs, outputs) for one in side) + 65536)
        self._slot = slot
        self._call = _core.Call(slot, (), model._ended, 0, 0)
        self._fills = [(one.at, i, one.nbytes, one.stride, _view(slot.input(i), one)) for i, one in enumerate(inputs)]
        self._bases = [_view(slot.output(i), one) for i, one in enumerate(outputs)]
        storages = [base.untyped_storage()._cdata for base in self._bases]
        self._counted = [(storage, _use_count(storage)) for storage in storages]
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
        self._call()
        if self.hidden:
            record.count("copies_out", len(self._bases))
            return [base.clone() for base in self._bases]
        return [base.detach() for base in self._bases]


class Given:
    """An input with its sizes of one call. ``at``: its position in the arguments."""

    __slots__ = ("at", "dtype", "nbytes", "order", "packed", "shape", "stride")

    def __init__(self, at: int, layout: Layout, shape: tuple[int, ...]) -> None:
        self.at = at
        self.dtype = DTYPES[layout.dtype]
        self.shape = shape
        self.packed = layout.packed(shape)
        self.order = layout.order
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

    def run(self, arguments: list[Any]) -> list[torch.Tensor]:
        lane = self._take()
        outputs = lane.run(arguments)  # when it raises, the lane goes with it
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
