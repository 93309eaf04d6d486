"""What people give as arguments, checked by hand: a wrong type is said with its path, before anything was done.

What goes into a call is checked by the signature of its model instead.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from teal import _core
from teal.errors import InvalidArgument

T = TypeVar("T")


def wrong(value: object, path: str, expected: str) -> InvalidArgument:
    """The error for a value of a type that ``expected`` does not describe."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:79] + "…"
    return InvalidArgument(f"{shown} is of type {type(value).__name__}, expected {expected}", path=path)


def whole(value: object, low: int, high: int, path: str) -> int:
    """A whole number from ``low`` to ``high``; NumPy's too, but no bool. Raises InvalidArgument."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise wrong(value, path, f"a whole number from {low} to {high}") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{number}, expected {low} to {high}", path=path)
    return number


def one_of(value: object, kinds: type[T] | tuple[type[T], ...], path: str, expected: str) -> T:
    """The value, if it is of that type. Raises InvalidArgument."""
    if not isinstance(value, kinds):
        raise wrong(value, path, expected)
    return value


def optional(value: object, kinds: type[T] | tuple[type[T], ...], path: str, expected: str) -> T | None:
    """The same, or None. A bool is no number, and a number is one that messages can hold."""
    if value is not None and isinstance(value, bool) and kinds is int:
        raise wrong(value, path, expected)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise InvalidArgument(f"a number of {value.bit_length()} bits, expected at most 63", path=path)
    return None if value is None else one_of(value, kinds, path, expected)


def seconds(value: object, path: str) -> float:
    """A number of seconds, finite or not. Raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise wrong(value, path, "a number of seconds")
    return float(value)


def shape(value: object, path: str) -> list[int]:
    """Extents, or the one extent of a vector, as NumPy takes them. Raises InvalidArgument."""
    given: Any = (value,) if isinstance(value, int) or not hasattr(value, "__iter__") else value
    expected = "a whole number or a sequence of them"
    if isinstance(value, (str, bytes, Mapping, set, frozenset)):
        raise wrong(value, path, expected)
    try:
        extents = [operator.index(extent) for extent in given]
    except TypeError:
        raise wrong(value, path, expected) from None
    if not all(0 <= extent < 1 << 63 for extent in extents):
        raise InvalidArgument(f"{tuple(extents)}, expected extents of 0 to 2^63 - 1", path=path)
    return extents


def dtype(value: object, path: str) -> str:
    """The name of a dtype that was given by name or as NumPy has it: ``np.float32``, ``np.dtype("f4")``.

    Raises InvalidArgument.
    """
    name = value
    if not isinstance(value, str):
        try:
            if value is None:  # which NumPy takes for float64
                raise TypeError
            found = np.dtype(value)  # type: ignore[call-overload]
        except TypeError:
            raise wrong(value, path, "a dtype such as 'float32' or np.float32") from None
        name = found.name if found.isnative and found.names is None else str(found)
    try:
        _core.dtype_size(str(name))
    except InvalidArgument as error:
        raise InvalidArgument(str(error), path=path) from None
    return str(name)


def path_of(value: object, path: str, expected: str) -> str | None:
    """A path as text, or None. Raises InvalidArgument."""
    if value is None or isinstance(value, str):
        return value
    text = os.fspath(value) if isinstance(value, os.PathLike) else None
    if not isinstance(text, str):
        raise wrong(value, path, expected)
    return text


def cores(value: object, usable: set[int], path: str) -> tuple[int, ...]:
    """Numbers of cores in rising order; None: not pinned. Raises InvalidArgument."""
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset, range)):
        raise wrong(value, path, "a list of cores such as [1, 2]")
    if strange := [core for core in value if isinstance(core, bool) or not isinstance(core, int)]:
        raise wrong(strange[0], path, "numbers of cores such as [1, 2]")
    numbers = set(value)
    if missing := sorted(numbers - usable):
        raise InvalidArgument(f"cores {missing}: this process may use {sorted(usable)}", path=path)
    return tuple(sorted(numbers))


def mapping(value: object, path: str, expected: str) -> dict[str, Any]:
    """A mapping with names as keys. Raises InvalidArgument."""
    if not isinstance(value, Mapping):
        raise wrong(value, path, expected)
    for name in value:
        if not isinstance(name, str):
            raise wrong(name, path, "a name as the key")
    return dict(value)
