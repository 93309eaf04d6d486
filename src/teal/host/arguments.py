"""What a caller gives: arrays and numbers, checked, each with what has to be known of it before there is memory for it.

Theory of operation: an array is left where it is until a slot for its dtype and shape is found; only then is it copied,
once. Tensors of the session that is called, and packed NumPy views of them, are not copied at all: they are places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from teal import _core
from teal.errors import InvalidArgument
from teal.host import wire
from teal.host.outputs import Outputs
from teal.kernel.strings import is_strings, pack


def named(arrays: tuple[Any, ...], inputs: dict[str, Any], names: Sequence[str], model: str) -> Mapping[str, Any]:
    """Inputs by name, whichever way they were given."""
    if not arrays:
        return inputs
    if not all(isinstance(name, str) for array in arrays if isinstance(array, Mapping) for name in array):
        raise InvalidArgument("a mapping whose keys are not all names of inputs")
    if len(arrays) == 1 and isinstance(arrays[0], Mapping):
        given = dict(arrays[0])
    else:
        if len(arrays) > len(names):
            raise InvalidArgument(f"{len(arrays)} inputs given, {model!r} has {len(names)}: {list(names)}")
        given = dict(zip(names, arrays, strict=False))
    if twice := sorted(set(given) & set(inputs)):
        raise InvalidArgument(f"given twice: {twice}")
    return {**given, **inputs}


def described(value: Any, spec: wire.Spec, path: str, session: _core.Session) -> tuple[Any, Any]:
    """What to put into a slot, and what finds the slot: an array and (dtype, shape, bytes), or a place and its key."""
    kind = type(value)
    if kind is np.ndarray or kind is _core.Tensor or kind is memoryview:  # subclasses mean more (masks, units)
        if (place := session.place_of(value)) is not None:
            return place, place.key
        if kind is np.ndarray and (name := PLAIN_DTYPES.get(value.dtype)) is not None:
            return value, (name, value.shape, 0)
    if kind is Outputs:
        return described(_only(value, path), spec, path, session)
    if isinstance(value, _core.Tensor) and value.dtype == "BYTES":
        value = value.numpy()
    if spec.dtype == "BYTES" or (spec.dtype is None and is_strings(value)):
        shape, packed = pack(value.numpy() if isinstance(value, _core.Tensor) else value, path)
        return packed, ("BYTES", shape, room(len(packed)))
    if isinstance(value, np.ndarray):
        if hasattr(value, "mask"):  # without importing numpy.ma, which takes 12 ms
            raise InvalidArgument("a masked array would lose its mask; give .filled(…)", path=path)
        if (name := PLAIN_DTYPES.get(value.dtype)) is not None:
            return value, (name, value.shape, 0)
        value = _plain_view(value, path)
        if isinstance(value, tuple):
            return value[1], (value[0], value[1].shape, 0)
    elif isinstance(value, (int, float, bool, complex, list, tuple, np.generic)):
        value = _from_python(value, spec, path)
        return value, (value.dtype.name, value.shape, 0)
    try:
        dtype, shape, _ = _core.describe(value)
    except TypeError as error:
        said = type(value).__name__
        made = hasattr(value, "__array__") and not hasattr(value, "__dlpack__")  # tables of other libraries, …
        if made or hasattr(value, "__array_interface__"):  # … and images
            raise InvalidArgument(f"{said} is no array itself; give numpy.asarray(…) of it", path=path) from None
        raise InvalidArgument(f"{said} is {error}", path=path) from None
    return value, (dtype, shape, 0)


def _only(outputs: Outputs, path: str) -> _core.Tensor:
    """What ``m2(m1(x))`` means."""
    if len(outputs) != 1:
        raise InvalidArgument(
            f"{len(outputs)} outputs of a call, expected one; give outputs[name], of {list(outputs.names)}", path=path
        )
    return outputs[0]


_WIDE = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # ml_dtypes'
_PLAIN = frozenset(_core.dtype_names()) - {"BYTES", *_WIDE}
PLAIN_DTYPES = {np.dtype(name): name for name in _PLAIN}  # in this machine's byte order
_RANKS = {
    "b": 0,
    "u": 1,
    "i": 1,
    "f": 2,
    "V": 2,
    "c": 3,
}  # kinds of NumPy dtypes: a number goes into its own or a higher


def _plain_view(array: np.ndarray[Any, Any], path: str) -> Any:
    """Arrays NumPy itself has no buffer for: ml_dtypes, and byte orders other than the machine's."""
    name = array.dtype.name
    if name in _WIDE:
        return name, array
    if array.dtype.newbyteorder("=").name in _PLAIN and not array.dtype.isnative:
        raise InvalidArgument(
            f"{array.dtype} has a foreign byte order; convert it with .astype({name!r})", path=f"{path}.dtype"
        )
    raise InvalidArgument(f"{array.dtype} is not one of Teal's dtypes", path=f"{path}.dtype")


def _from_python(value: Any, spec: wire.Spec, path: str) -> np.ndarray[Any, Any]:
    """A number or nested list, in the dtype the signature asks for. Nothing is cut off on the way."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise InvalidArgument(str(error), path=path) from None
    if spec.dtype is not None:
        array = _converted(array, value, spec.dtype, path)
    if array.dtype.name not in _PLAIN and array.dtype.name not in _WIDE:
        raise InvalidArgument(f"{type(value).__name__} that makes {array.dtype}; give an array", path=path)
    return array


def _converted(array: np.ndarray[Any, Any], value: Any, name: str, path: str) -> np.ndarray[Any, Any]:
    wanted = np.dtype(getattr(ml_dtypes, name) if name in _WIDE else name)
    if array.dtype == wanted:
        return array
    complaint = f"{type(value).__name__} does not convert to {name}"
    if array.size > 0 and _RANKS.get(array.dtype.kind, 9) > _RANKS[wanted.kind]:
        raise InvalidArgument(f"{complaint}: it makes {array.dtype}", path=path)
    try:
        with np.errstate(over="ignore"):
            result = np.asarray(value, dtype=wanted)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{complaint}: {error}", path=path) from None
    infinite = np.any(np.isfinite(array) & ~np.isfinite(result))  # a fraction may lose digits, and no more
    if infinite or (wanted.kind in "ui" and not np.array_equal(result, array)):
        raise InvalidArgument(f"{complaint}: a number is out of its range", path=path)
    return result


def room(nbytes: int) -> int:
    """Capacity for contents of varying size: the next power of two, so that few homes serve many lengths."""
    return max(256, 1 << (nbytes - 1).bit_length()) if nbytes else 256


def nanoseconds(seconds: Any, path: str = "$.deadline") -> int:
    """Nanoseconds from now; a deadline of 0 or less has passed already."""
    try:
        if -1e9 < seconds < 1e9:
            return int(seconds * 1e9)
    except (TypeError, ValueError):  # no number, or an array of them
        pass
    raise InvalidArgument(f"{seconds!r}, expected seconds from now", path=path)


def priority(value: Any) -> int:
    """The priority, if it is one."""
    if not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise InvalidArgument(f"{value!r}, expected a whole number from -2^31 to 2^31 - 1", path="$.priority")
    return value
