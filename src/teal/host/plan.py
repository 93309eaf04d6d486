"""From a signature and the shapes of a call's inputs to the plan of its slot.

A plan says for each tensor: dtype, shape (or None when only the run can tell), bytes to reserve, flags, and the input
that an output lies in. Output shapes come from symbolic extents that the inputs fix. What cannot be known gets a
capacity that is remembered from earlier calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from teal._core import dtype_size
from teal.errors import InvalidArgument
from teal.host.wire import Spec
from teal.kernel.protocol import check_shape

TENSOR_ABSENT = 1
FIRST_CAPACITY = 4096

# dtype, shape, capacity, flags, for an output: the input whose memory it is
PlanEntry = tuple[str, tuple[int, ...] | None, int, int, int | None]
Shapes = tuple[tuple[str, tuple[int, ...], int] | None, ...]  # dtype, shape, bytes (BYTES only); None: not given


def plan_inputs(specs: Sequence[Spec], shapes: Shapes) -> tuple[list[PlanEntry], dict[str, int]]:
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
            plans.append(("float32", (), 0, TENSOR_ABSENT, None))
            continue
        dtype, shape, nbytes = given
        if spec.dtype is not None and dtype != spec.dtype:
            raise InvalidArgument(f"{dtype}, input {spec.name!r} expects {spec.dtype}", path=f"{path}.dtype")
        check_shape(spec, shape, extents, path)
        plans.append((dtype, shape, nbytes if dtype == "BYTES" else 0, 0, None))
    return plans, extents


def plan_outputs(
    specs: Sequence[Spec],
    inputs: Mapping[str, PlanEntry],
    extents: Mapping[str, int],
    capacities: Mapping[int, int],
    unplannable: set[int],
) -> list[PlanEntry]:
    """Plans of the outputs. ``capacities``: bytes learned for outputs of unknown size, by index."""
    plans: list[PlanEntry] = []
    for i, spec in enumerate(specs):
        shape = None if i in unplannable else _known_shape(spec, inputs, extents)
        dtype = inputs[spec.like][0] if spec.like is not None else spec.dtype
        if spec.in_place and spec.like is not None and dtype != "BYTES":
            plans.append((*inputs[spec.like][:4], list(inputs).index(spec.like)))
        elif shape is None or dtype is None or dtype == "BYTES":
            room = FIRST_CAPACITY if spec.like is None else inputs[spec.like][2]  # strings like those that are given
            plans.append((dtype or "uint8", None, capacities.get(i, room), 0, None))
        else:
            plans.append((dtype, shape, 0, 0, None))
    return plans


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
    for dtype, shape, capacity, flags, in_place in plans:
        if in_place is not None:
            continue
        size = 0 if shape is None or flags & TENSOR_ABSENT else prod(shape) * dtype_size(dtype)
        total += max(size, capacity) + 512
    return total + 1024 + 128 * len(plans)
