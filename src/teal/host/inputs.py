"""Input tensors to be filled in place, and the shapes that callers ask for them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from teal import _core
from teal.errors import InvalidArgument
from teal.host import wire
from teal.host.plan import Shapes


class Inputs(Mapping[str, Any]):
    """Input tensors in shared memory, by name: fill them, then ``model(**inputs)``."""

    def __init__(self, tensors: dict[str, _core.Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> _core.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Inputs({self._tensors!r})"


def shapes_of(specs: Sequence[wire.Spec], dims: Mapping[str, Any], model: str) -> Shapes:
    """Shapes of all inputs, from values of symbolic dimensions and whole shapes by input name."""
    shapes = tuple(_shape_of(i, spec, dims) for i, spec in enumerate(specs))
    extents = {extent for spec in specs for extent in spec.shape or () if isinstance(extent, str)}
    known = extents | {spec.name for spec in specs}
    if unknown := sorted(set(dims) - known):
        raise InvalidArgument(f"{unknown}: neither dimensions nor inputs of {model!r}; it has {sorted(known)}")
    for i, spec in enumerate(specs):
        if isinstance(given := dims.get(spec.name), int) and spec.name not in extents:
            raise InvalidArgument(f"{given!r}: give its shape, as in {spec.name}=(1, 3)", path=f"$.inputs[{i}]")
    return shapes


def _shape_of(i: int, spec: wire.Spec, dims: Mapping[str, Any]) -> tuple[str, tuple[int, ...], int] | None:
    given = dims.get(spec.name)
    dtype = spec.dtype
    if given is not None and not isinstance(given, int):
        dtype, shape = _whole_shape(i, spec, given)
    elif spec.shape is None:
        if spec.optional and given is None:
            return None
        raise InvalidArgument(f"give its shape, as in {spec.name}=(1, 3)", path=f"$.inputs[{i}]")
    else:
        shape = _filled_in(i, spec, spec.shape, dims)
    if dtype is None:
        raise InvalidArgument(
            f"give its dtype too, as in {spec.name}=('float32', {shape})", path=f"$.inputs[{i}].dtype"
        )
    if dtype == "BYTES":
        raise InvalidArgument("strings cannot be filled in place; pass them to the call", path=f"$.inputs[{i}]")
    if any(not 0 <= extent < 1 << 63 for extent in shape):
        raise InvalidArgument(f"{shape}, expected extents of 0 to 2^63 - 1", path=f"$.inputs[{i}].shape")
    return dtype, shape, 0


def _whole_shape(i: int, spec: wire.Spec, given: Any) -> tuple[str | None, tuple[int, ...]]:
    """(dtype, shape) as given: ``(1, 3)``, or ``("float32", (1, 3))``."""
    dtype = spec.dtype
    try:
        if isinstance(given, (str, bytes, Mapping)):
            raise TypeError
        extents = tuple(given)
        if len(extents) == 2 and isinstance(extents[0], str):
            dtype, extents = extents[0], tuple(extents[1])
    except TypeError:
        raise InvalidArgument(f"{given!r}: give its shape, as in {spec.name}=(1, 3)", path=f"$.inputs[{i}]") from None
    return dtype, tuple(_extent(extent, f"$.inputs[{i}].shape[{axis}]") for axis, extent in enumerate(extents))


def _filled_in(i: int, spec: wire.Spec, shape: Sequence[Any], dims: Mapping[str, Any]) -> tuple[int, ...]:
    """The signature's shape with the values of its symbolic dimensions."""
    missing = [extent for extent in shape if not isinstance(extent, int) and (extent is None or extent not in dims)]
    if missing:
        raise InvalidArgument(
            f"input {spec.name!r} has shape {spec.shape}: give "
            + (", ".join(f"{name}=" for name in missing if name) or f"{spec.name}=(…)"),
            path=f"$.inputs[{i}].shape",
        )
    return tuple(
        _extent(dims[extent], f"$.{extent}") if isinstance(extent, str) else int(extent or 0) for extent in shape
    )


def _extent(value: Any, path: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{value!r}, expected a whole number", path=path) from None
