"""BYTES tensors: strings as an offset table and their bytes.

Layout (core/memory/descriptor.hpp): u64 offsets[count + 1] from 0, ascending, then the bytes. Packing and unpacking
copy: a Python string owns its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.errors import InvalidArgument


def pack(array: Any, path: str = "$") -> tuple[tuple[int, ...], bytes]:
    """Shape and packed bytes of an array or nested list of str or bytes (str is stored as UTF-8)."""
    try:
        items = np.asarray(array, dtype=object)
    except ValueError as error:  # rows of different lengths
        raise InvalidArgument(str(error), path=path) from None
    parts = [_encoded(item, path) for item in items.ravel()]
    offsets = np.zeros(len(parts) + 1, np.uint64)
    if parts:
        np.cumsum([len(part) for part in parts], out=offsets[1:])
    return items.shape, offsets.tobytes() + b"".join(parts)


def _encoded(item: object, path: str) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        try:
            return item.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{item[:40]!r} is not text that UTF-8 can hold: {error.reason}", path=path) from None
    raise InvalidArgument(f"{type(item).__name__}, expected str or bytes", path=path)


def decoded(items: Iterable[bytes], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """An object array of str, as engines want it."""
    array = np.empty(int(np.prod(shape, dtype=np.int64)), object)
    array[:] = [item.decode("utf-8", "surrogateescape") for item in items]
    return array.reshape(shape)


def is_strings(array: Any) -> bool:
    """Is it a str or bytes, or an array, list or tuple of them?"""
    if isinstance(array, (str, bytes)):
        return True
    if isinstance(array, np.ndarray):
        return array.dtype.kind in "USOT"
    while isinstance(array, (list, tuple)) and array:
        array = array[0]
    return isinstance(array, (str, bytes))
