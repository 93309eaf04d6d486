"""From a signature and the shapes of a call's inputs to the plan of its slot.

A plan says for each tensor: dtype, shape (or None when only the run can tell), bytes to reserve, flags, the input
that an output lies in, and the place of a tensor that is used where it is. Output shapes come from symbolic extents
that the inputs fix. What cannot be known gets a capacity that is remembered from earlier calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from teal._core import Place, dtype_size
from teal.errors import InvalidArgument
from teal.host.wire import Spec
from teal.kernel.protocol import check_shape

TENSOR_ABSENT = 1
TENSOR_CHAINED = 4
FIRST_CAPACITY = 4096

Link = tuple[int, int, int, int]
# dtype, shape, capacity, flags, for an output: the input whose memory it is, (region, offset) if it has a place, with
# its link if it is an output to come
PlanEntry = tuple[str, tuple[int, ...] | None, int, int, int | None, tuple[int, int] | tuple[int, int, Link] | None]
# dtype, shape, bytes (BYTES and outputs to come only); None: not given. dtype and shape of what is to come may be None
Shapes = tuple[tuple[str | None, tuple[int, ...] | None, int] | None, ...]
Places = Sequence[Place | None]  # of each tensor; empty: of none


def plan_inputs(specs: Sequence[Spec], shapes: Shapes, places: Places = ()) -> tuple[list[PlanEntry], dict[str, int]]:
    """Plans of the inputs and the extents that they fix. Raises InvalidArgument with the path of what does not suit."""
    extents: dict[str, int] = {}
    plans: list[PlanEntry] = []
    for i, (spec, given) in enumerate(zip(specs, shapes, strict=True)):
        path = f"$.inputs[{i}]"
        if given is None:
            if not spec.optional:
                raise InvalidArgument(
                    f"input {spec.name!r} is missing; the inputs are {[s.name for s in specs]}", path=path
                )
            plans.append(("float32", (), 0, TENSOR_ABSENT, None, None))
            continue
        dtype, shape, nbytes = given
        if spec.dtype is not None and dtype is not None and dtype != spec.dtype:
            raise InvalidArgument(f"{dtype}, input {spec.name!r} expects {spec.dtype}", path=f"{path}.dtype")
        if shape is not None:
            check_shape(spec, shape, extents, path)
        place = places[i] if places else None
        if place is not None and place.link is not None:
            linked = (place.region, place.offset, place.link)
            plans.append((dtype or "uint8", shape, nbytes, TENSOR_CHAINED, None, linked))
            continue
        assert dtype is not None
        at = None if place is None else (place.region, place.offset)
        plans.append((dtype, shape, nbytes if dtype == "BYTES" else 0, 0, None, at))
    return plans, extents


def plan_outputs(
    specs: Sequence[Spec],
    inputs: Mapping[str, PlanEntry],
    extents: Mapping[str, int],
    capacities: Mapping[int, int],
    unplannable: set[int],
    places: Places = (),
) -> list[PlanEntry]:
    """Plans of the outputs. ``capacities``: bytes learned for outputs of unknown size, by index.

    Raises InvalidArgument for a place whose dtype or shape is not the output's.
    """
    plans: list[PlanEntry] = []
    for i, spec in enumerate(specs):
        shape = None if i in unplannable else _known_shape(spec, inputs, extents)
        dtype = inputs[spec.like][0] if spec.like is not None else spec.dtype
        plan: PlanEntry
        chained = spec.like is not None and inputs[spec.like][3] & TENSOR_CHAINED
        if spec.in_place and spec.like is not None and dtype != "BYTES" and not chained:
            plan = (*inputs[spec.like][:4], list(inputs).index(spec.like), None)
        elif shape is None or dtype is None or dtype == "BYTES":
            room = FIRST_CAPACITY if spec.like is None else inputs[spec.like][2]  # strings like those that are given
            plan = (dtype or "uint8", None, capacities.get(i, room), 0, None, None)
        else:
            plan = (dtype, shape, 0, 0, None, None)
        if places and (place := places[i]) is not None:
            if dtype is not None and place.dtype != dtype:
                raise InvalidArgument(
                    f"{place.dtype}, output {spec.name!r} needs {dtype}", path=f"$.outputs[{i}].dtype"
                )
            source = inputs[spec.like] if spec.like is not None else None
            plan = _placed(plan, place, spec.name, f"$.outputs[{i}]", source)
        plans.append(plan)
    return plans


def _placed(plan: PlanEntry, place: Place, name: str, path: str, source: PlanEntry | None) -> PlanEntry:
    """The plan of an output that goes to a place. ``source``: plan of the input that it is like."""
    _, shape, _, flags, in_place, _ = plan
    if place.dtype == "BYTES":
        raise InvalidArgument("strings cannot be received in place; leave it out", path=path)
    at = (place.region, place.offset)
    if shape is None:  # told apart when the run has ended
        return (place.dtype, None, place.nbytes, flags, None, at)
    if place.shape != shape:
        raise InvalidArgument(f"{place.shape}, output {name!r} needs {shape}", path=f"{path}.shape")
    if in_place is not None and source is not None and source[5] == at:
        return plan
    return (place.dtype, shape, 0, flags, None, at)


def _known_shape(spec: Spec, inputs: Mapping[str, PlanEntry], extents: Mapping[str, int]) -> tuple[int, ...] | None:
    if spec.like is not None:
        return inputs[spec.like][1]
    if spec.shape is None:
        return None
    shape = [extents.get(extent) if isinstance(extent, str) else extent for extent in spec.shape]
    return None if any(extent is None for extent in shape) else tuple(extent for extent in shape if extent is not None)


def plan_bytes(plans: Sequence[PlanEntry]) -> int:
    """An upper bound of the shared memory these tensors take, alignment included."""
    total = 0
    for dtype, shape, capacity, flags, in_place, place in plans:
        if in_place is not None or place is not None:
            continue
        size = 0 if shape is None or flags & TENSOR_ABSENT else prod(shape) * dtype_size(dtype)
        total += max(size, capacity) + 512
    return total + 1024 + 128 * len(plans)
