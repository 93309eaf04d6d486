"""Model files of the systems loads: safetensors with ``teal.load`` and ``teal.version`` in its metadata.

The reader is the core's (core/systems/file.hpp), which is strict; this is the writer, and a view for Python. Any
safetensors writer makes files that can be loaded; this one also aligns the data to 64 bytes.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from teal import _core
from teal.errors import InvalidArgument, NotFound
from teal.kernel.systems import LOADS, VERSION, Load

_ALIGN = 64
_DTYPES = {"int64": "I64", "float32": "F32"}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file that was checked: read-only arrays over one mapping of it. ``offset``: where the weights begin."""

    load: Load
    offset: int
    tensors: dict[str, Array]


def pack(load: str, tensors: Mapping[str, Any], notes: Mapping[str, str] | None = None) -> bytes:
    """The file of these tensors. ``notes``: more metadata, of your own. Raises InvalidArgument for wrong tensors."""
    known = LOADS.get(load)
    if known is None:
        raise InvalidArgument(f"load {load!r}, expected one of {sorted(LOADS)}", path="$.load")
    if set(tensors) != set(known.tensors):
        raise InvalidArgument(
            f"tensors {sorted(tensors)}, expected those of {load}: {sorted(known.tensors)}", path="$.tensors"
        )
    header: dict[str, Any] = {"__metadata__": {**(notes or {}), "teal.load": load, "teal.version": VERSION}}
    parts = []
    at = 0
    for name, shape in known.tensors.items():
        array = np.ascontiguousarray(tensors[name])
        if array.dtype != known.weights or array.shape != shape:
            raise InvalidArgument(
                f"{array.dtype} {array.shape}, expected {known.weights} {shape}", path=f"$.tensors[{name!r}]"
            )
        parts.append(array.tobytes())
        header[name] = {"dtype": _DTYPES[known.weights], "shape": shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def save(
    path: str | os.PathLike[str], load: str, tensors: Mapping[str, Any], notes: Mapping[str, str] | None = None
) -> None:
    """Writes the file of these tensors, checked as a load would check it, in one step. Raises InvalidArgument."""
    contents = pack(load, tensors, notes)
    os.close(seal(contents))
    partial = f"{os.fsdecode(path)}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(contents)
        os.replace(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise


def seal(contents: bytes) -> int:
    """Descriptor of a sealed copy, checked. Raises InvalidArgument for what is no model file."""
    fd = _core.sealed_file("teal:systems", contents)
    try:
        _core.systems_file(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def view(contents: bytes | str | os.PathLike[str]) -> ModelFile:
    """The tensors of a file or its bytes, in place. Raises NotFound, InvalidArgument."""
    if not isinstance(contents, bytes):
        try:
            with open(contents, "rb") as file:
                contents = file.read()
        except OSError as error:
            raise NotFound(f"{os.fsdecode(contents)}: {error.strerror}") from None
    fd = seal(contents)
    try:
        name, offset = _core.systems_file(fd)
        pages = mmap.mmap(fd, len(contents), prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    load = LOADS[name]
    tensors: dict[str, Array] = {}
    at = offset
    for tensor, shape in load.tensors.items():
        count = int(np.prod(shape))
        tensors[tensor] = np.frombuffer(pages, load.weights, count, at).reshape(shape)
        at += tensors[tensor].nbytes
    return ModelFile(load, offset, tensors)
