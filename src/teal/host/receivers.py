"""Memory that a call's outputs go to: what was given with ``out=``.

Theory of operation: each output may get a tensor of this session (``host.empty``, one of ``new_inputs``, an output of
another call) or a packed, writable NumPy view of one. The kernel writes there, nothing is copied. Dtypes and shapes are
checked where the slot is planned (plan.py), once for the same memory; for an output whose shape only the run can tell
they are checked when it has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from teal import _core
from teal.errors import InvalidArgument


class Receivers:
    """For each output of a model: a place and the object that was given for it, or None."""

    __slots__ = ("key", "objects", "places")

    def __init__(self, out: Any, names: Sequence[str], session: _core.Session) -> None:
        self.objects = [out] if type(out) is _core.Tensor and len(names) == 1 else _in_order(out, names)
        self.places: list[_core.Place | None] = []
        for i, value in enumerate(self.objects):
            self.places.append(None if value is None else _place(value, session, i))
        self.key = tuple([None if place is None else place.key for place in self.places])

    def show(self, tensors: list[_core.Tensor | None]) -> None:
        """Replaces tensors over this memory by those that were given."""
        for i, value in enumerate(self.objects):
            if isinstance(value, _core.Tensor) and tensors[i] is not None:
                tensors[i] = value

    def put(self, tensors: list[_core.Tensor | None], spilled: dict[int, _core.Tensor], slot: _core.Slot) -> None:
        """The same once the run has ended. ``spilled``: outputs that are elsewhere, as one was larger than planned.

        Those with memory here are copied into it (counted). Raises InvalidArgument when a kernel wrote another dtype or
        shape than that of the memory it was given.
        """
        for i, (value, place) in enumerate(zip(self.objects, self.places, strict=True)):
            made = spilled.get(i, tensors[i])
            if place is None or made is None:
                continue
            if (made.dtype, made.shape) != (place.dtype, place.shape):
                raise InvalidArgument(
                    f"the model wrote {made.dtype} {made.shape}, the memory given is {place.dtype} {place.shape}; "
                    "its contents are no answer",
                    path=f"$.outputs[{i}]",
                )
            if i in spilled:
                np.copyto(value.numpy() if isinstance(value, _core.Tensor) else np.asarray(value), made.numpy())
                slot.count_copy(made.nbytes)
                if isinstance(value, _core.Tensor):
                    del spilled[i]
        self.show(tensors)


def _in_order(out: Any, names: Sequence[str]) -> list[Any]:
    """What was given, in the order of the outputs."""
    if isinstance(out, Mapping):
        if unknown := [name for name in out if name not in names]:
            raise InvalidArgument(f"{unknown}: not outputs; the outputs are {list(names)}", path="$.out")
        return [out.get(name) for name in names]
    if isinstance(out, (list, tuple)):
        if len(out) != len(names):
            raise InvalidArgument(f"{len(out)} given, expected one for each of {list(names)}", path="$.out")
        return list(out)
    if len(names) != 1:
        raise InvalidArgument(
            f"{type(out).__name__}, expected a sequence or mapping with a tensor for each of {list(names)}",
            path="$.out",
        )
    return [out]


def _place(value: Any, session: _core.Session, output: int) -> _core.Place:
    if not isinstance(value, (_core.Tensor, np.ndarray, memoryview)):
        raise InvalidArgument(
            f"{type(value).__name__} cannot receive an output; give a tensor of host.empty() or new_inputs()",
            path=f"$.outputs[{output}]",
        )
    place = session.place_of(value)
    if place is None:
        raise InvalidArgument(
            f"{type(value).__name__} that is not packed memory of this model's host and pool; give a tensor of "
            "host.empty() or new_inputs(), or a packed view of one",
            path=f"$.outputs[{output}]",
        )
    if place.readonly:
        raise InvalidArgument(
            "read-only memory cannot receive an output; give a writable tensor", path=f"$.outputs[{output}]"
        )
    return place
