"""Inputs as people type them, and outputs as JSON.

An input is a JSON number or nested list, the text itself for BYTES (a text that starts with [, " or @ is written as a
JSON string), @FILE.npy, @FILE.json, or for BYTES any other @FILE, whose contents are one string. Conversions never
change a value silently: fractions do not become integers, and nothing overflows. Arrays of a file keep their dtype
unless --dtype asks for another.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.errors import InvalidArgument, NotFound
from teal.host.records import TensorSpec

Array = npt.NDArray[Any]

_OWN_JSON = '["'
_NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # dtypes of ml_dtypes: JSON and .npy files get float32


def read(text: str, spec: TensorSpec, dtype: str | None) -> Array:
    """The array that ``text`` means for this input. ``dtype``: asked for by hand. Raises InvalidArgument, NotFound."""
    path = f"$.{spec.name}"
    wanted = dtype or spec.dtype
    if text.startswith("@"):
        return _from_file(Path(text[1:]), wanted, dtype, path)
    if wanted == "BYTES" and not text.startswith(tuple(_OWN_JSON)):
        return np.array(text, object)
    return from_json(_parsed(text, path), wanted, path)


def _from_file(file: Path, wanted: str | None, dtype: str | None, path: str) -> Array:
    try:
        if file.suffix == ".npy":
            array = _npy(file, path)
            return array if dtype is None else _converted(array, dtype, path)
        if file.suffix == ".json":
            return from_json(_parsed(file.read_text("utf-8"), path), wanted, path)
        if wanted == "BYTES":
            return np.array(file.read_bytes(), object)
    except OSError as error:
        raise NotFound(f"{path}: {file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file}: not UTF-8 at byte {error.start}", path=path) from None
    except ValueError as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"{file}: {error}", path=path) from None
    raise InvalidArgument(f"{file}: expected a name that ends in .npy or .json", path=path)


def _npy(file: Path, path: str) -> Array:
    with open(file, "rb") as opened:
        try:
            array = np.lib.format.read_array(opened, allow_pickle=False)
        except (ValueError, EOFError, SyntaxError, MemoryError, OverflowError) as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidArgument(f"{file}: not a .npy file that can be read: {words}", path=path) from None
    return np.asarray(array)


def _parsed(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = text[:40] + "…" * (len(text) > 40)
        raise InvalidArgument(
            f'{shown!r} is not JSON ({error}); expected numbers or nested lists such as [[1, 2]], "text", @FILE.npy or '
            "@FILE.json",
            path=path,
        ) from None


def from_json(value: Any, dtype: str | None, path: str) -> Array:
    """An array of a JSON value. Raises InvalidArgument."""
    if dtype == "BYTES" or (dtype is None and _first(value, str)):
        return _strings(value, path)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"not an array: {error}", path=path) from None
    if array.size == 0 and not _first(value, dict):
        array = array.astype(np.int64) if array.dtype == np.float64 else array  # an empty list is of any dtype
    if array.dtype.kind not in "biuf":
        raise InvalidArgument("expected numbers, true and false in lists of equal length", path=path)
    return array if dtype is None else _converted(array, dtype, path)


def _first(value: Any, kind: type) -> bool:
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, kind)


def _strings(value: Any, path: str) -> Array:
    array = np.array(value, object)
    for item in array.flat:
        if not isinstance(item, str):
            raise InvalidArgument(f"{str(item)[:40]}: expected strings in lists of equal length", path=path)
    return array


def _converted(array: Array, dtype: str, path: str) -> Array:
    """The same values in another dtype. Raises InvalidArgument when they would not be the same."""
    target = numpy_dtype(dtype, path)
    if array.dtype == target:
        return array
    from_kind, to_kind = array.dtype.kind, "f" if dtype in _NARROW else target.kind
    if not (from_kind in "biuf" and (to_kind in "fc" or (from_kind != "f" and to_kind in "biu"))):
        raise InvalidArgument(f"{array.dtype} does not convert to {dtype} without loss", path=f"{path}.dtype")
    with np.errstate(over="ignore", invalid="ignore"):
        converted: Array = array.astype(target)
    if to_kind in "fc":
        fits = bool(np.all(np.isfinite(converted.astype(np.complex128)) == np.isfinite(array)))
    else:
        least, most = (0, 1) if to_kind == "b" else (np.iinfo(target).min, np.iinfo(target).max)
        fits = array.size == 0 or (int(array.min()) >= least and int(array.max()) <= most)
    if not fits:
        raise InvalidArgument(f"a value does not fit {dtype}", path=path)
    return converted


def numpy_dtype(dtype: str, path: str) -> np.dtype[Any]:
    """NumPy's dtype of one of Teal's names, BYTES excepted. Raises InvalidArgument."""
    from teal import _core

    names = [name for name in _core.dtype_names() if name != "BYTES"]
    if dtype not in names:
        raise InvalidArgument(f"dtype {dtype[:40]!r}, expected one of {names}", path=f"{path}.dtype")
    if dtype in _NARROW:
        import ml_dtypes

        narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype))
        return narrow
    return np.dtype(dtype)


# ---- made up ---------------------------------------------------------------------------------------------------------


def shape_of(spec: TensorSpec, dims: Mapping[str, int], given: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of an input to be filled. Raises InvalidArgument naming what is missing."""
    path = f"$.{spec.name}"
    if given is not None:
        return tuple(given)
    if spec.shape is None or None in spec.shape:
        shown = "any shape" if spec.shape is None else f"shape {list(spec.shape)}"
        raise InvalidArgument(f"it takes {shown}; give --shape {spec.name}=2,3", path=path)
    missing = sorted({extent for extent in spec.shape if isinstance(extent, str) and extent not in dims})
    if missing:
        wanted = " ".join(f"--dim {name}=1" for name in missing)
        raise InvalidArgument(f"it has shape {list(spec.shape)}; give {wanted}", path=path)
    return tuple(dims[extent] if isinstance(extent, str) else int(extent or 0) for extent in spec.shape)


def filled(how: str, dtype: str, shape: Sequence[int], path: str) -> Array:
    """zeros, ones, or random: floats in [0, 1), integers in 0 to 99, the same every time."""
    count = math.prod(shape)
    try:
        if dtype == "BYTES":
            texts = {"zeros": [""] * count, "ones": ["1"] * count, "random": [f"text {i}" for i in range(count)]}
            strings = np.empty(count, object)
            strings[:] = texts[how]
            return strings.reshape(tuple(shape))
        target = numpy_dtype(dtype, path)
        if how != "random":
            return np.full(tuple(shape), 0 if how == "zeros" else 1).astype(target)
        random = np.random.default_rng(0)
        if target.kind in "iu":
            return random.integers(0, 100, tuple(shape)).astype(target)
        return (random.random(tuple(shape)) < 0.5 if target.kind == "b" else random.random(tuple(shape))).astype(target)
    except (ValueError, MemoryError) as error:
        raise InvalidArgument(f"cannot make an input of shape {list(shape)}: {error}", path=f"{path}.shape") from None


# ---- outputs ---------------------------------------------------------------------------------------------------------


def document(name: str, dtype: str, array: Array, limit: int) -> dict[str, Any]:
    """An output as JSON: shape, dtype, and its values in C order, at most ``limit`` of them.

    NaN and infinities are the strings "NaN", "Infinity" and "-Infinity", as JSON has no such numbers; complex numbers
    are pairs; BYTES are text, or all of them base64 if one is not UTF-8.
    """
    found: dict[str, Any] = {"name": name, "dtype": dtype, "shape": list(array.shape)}
    flat = widened(array).reshape(-1)[:limit]
    if dtype == "BYTES":
        found["encoding"], found["values"] = _texts(list(flat))
    elif flat.dtype.kind == "c":
        found["values"] = [[_number(value.real), _number(value.imag)] for value in flat.tolist()]
    elif flat.dtype.kind == "f":
        found["values"] = [_number(value) for value in flat.tolist()]
    else:
        found["values"] = flat.tolist()
    found["truncated"] = array.size > limit
    return found


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _texts(items: list[bytes]) -> tuple[str, list[str]]:
    try:
        return "utf-8", [item.decode() for item in items]
    except UnicodeDecodeError:
        return "base64", [base64.b64encode(item).decode() for item in items]


def widened(array: Array) -> Array:
    """float32 for dtypes that only ml_dtypes knows; every value of theirs is one of float32."""
    return array.astype(np.float32) if array.dtype.name in _NARROW else array
