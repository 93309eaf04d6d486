"""The inputs on which candidates are compared and timed: the user's own, or random ones.

A file.npz has one array an input, by its name. Where the model's first extent is symbolic (a batch) and an array has
more rows than one, every row is a sample; otherwise the file is one sample. A folder of such files is their samples in
the order of names. Random ones are made from the signature: numbers of a normal distribution; whole numbers are small;
masks are ones. They say how fast a model is, but not how far rounding moves the answers that matter: so reports say
"random".
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InvalidArgument, NotFound
from teal.host.records import TensorSpec

MOST = 1024  # samples that are compared
RANDOM = 32  # samples where none were given
OPEN_EXTENT = 64  # of a symbolic extent that is not the batch and that nobody said
_SMALL = 1000  # whole numbers stay below: most vocabularies are larger

Sample = dict[str, Any]


@dataclass(frozen=True)
class Samples:
    """rows: one sample each, batch 1 where the model has a batch. kind: "given" or "random"; note: what was assumed."""

    rows: list[Sample]
    kind: str
    note: str = ""


def batched(specs: Sequence[TensorSpec]) -> bool:
    """Is the first extent of every input a free one? Then it is taken for the batch."""
    needed = [spec for spec in specs if not spec.optional]
    return bool(needed) and all(spec.shape and not isinstance(spec.shape[0], int) for spec in needed)


def rows_of_sample(specs: Sequence[TensorSpec]) -> int:
    """How many rows of every input are one sample: 1 of a batch, a fixed first extent that all have, 0: no telling."""
    if batched(specs):
        return 1
    first = {spec.shape[0] if spec.shape else None for spec in specs if not spec.optional}
    fixed = first.pop() if len(first) == 1 else None
    return fixed if isinstance(fixed, int) else 0


def given(path: Path, specs: Sequence[TensorSpec]) -> Samples:
    """From a file.npz or a folder of them. Raises NotFound, InvalidArgument."""
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise NotFound(f"no .npz file in {path}")
    rows: list[Sample] = []
    for file in files:
        rows += split(read(file, specs), rows_of_sample(specs))
        if len(rows) >= MOST:
            break
    return Samples(rows[:MOST], "given")


def read(path: Path, specs: Sequence[TensorSpec]) -> Sample:
    """The arrays of one file. Raises NotFound, InvalidArgument with what does not suit the signature."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InvalidArgument(f"{path}: not an .npz file of arrays ({error})") from None
    names = {spec.name for spec in specs}
    needed = {spec.name for spec in specs if not spec.optional}
    if not needed <= set(arrays) <= names:
        raise InvalidArgument(f"{path} has {sorted(arrays)}, expected the model's inputs {sorted(needed)}")
    for spec in specs:
        array = arrays.get(spec.name)
        if array is None:
            continue
        if str(array.dtype) != spec.dtype:
            raise InvalidArgument(f"{path}: {spec.name} is {array.dtype}, the model takes {spec.dtype}")
        if spec.shape is not None and array.ndim != len(spec.shape):
            raise InvalidArgument(f"{path}: {spec.name} has rank {array.ndim}, the model takes {len(spec.shape)}")
        each = rows_of_sample(specs)
        for axis, (extent, wanted) in enumerate(zip(array.shape, spec.shape or (), strict=False)):
            several = axis == 0 and each and extent % each == 0
            if isinstance(wanted, int) and extent != wanted and not several:
                raise InvalidArgument(f"{path}: {spec.name} has shape {array.shape}, the model takes {spec.shape}")
    return arrays


def split(arrays: Sample, each: int) -> list[Sample]:
    """One sample for ``each`` so many rows, where every array has as many rows."""
    lengths = {array.shape[0] for array in arrays.values()} if each else set()
    if len(lengths) != 1 or (count := lengths.pop()) % each:
        return [arrays]
    return [{name: array[i : i + each] for name, array in arrays.items()} for i in range(0, count, each)]


def random(specs: Sequence[TensorSpec], extents: Mapping[str, int], count: int = RANDOM) -> Samples:
    """extents: of symbolic dimensions, by name. Raises InvalidArgument for a model whose inputs cannot be made up."""
    has_batch, assumed = batched(specs), set()
    shapes = {}
    for spec in specs:
        if spec.optional:
            continue
        if spec.shape is None or spec.dtype in (None, "BYTES"):
            raise InvalidArgument(f"input {spec.name!r} has no shape or is text: give real inputs (--inputs FILE.npz)")
        shape = []
        for axis, extent in enumerate(spec.shape):
            if isinstance(extent, int):
                shape.append(extent)
            elif axis == 0 and has_batch:
                shape.append(1)
            else:
                shape.append(extents.get(extent or "", OPEN_EXTENT))
                if extent not in extents:
                    assumed.add(f"{extent or f'{spec.name}[{axis}]'} = {OPEN_EXTENT}")
        shapes[spec.name] = (spec.dtype, tuple(shape))
    numbers = np.random.default_rng(1)
    rows = [{name: drawn(numbers, name, *known) for name, known in shapes.items()} for _ in range(count)]
    return Samples(rows, "random", f"assumed {', '.join(sorted(assumed))}" if assumed else "")


def drawn(numbers: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
    """A random array; what is called a mask is all ones, what is called a type all zeros."""
    word = name.lower()
    if "mask" in word or dtype == "bool":
        return np.ones(shape, dtype)
    if "type" in word or "segment" in word:
        return np.zeros(shape, dtype)
    if dtype.startswith(("int", "uint")):
        return numbers.integers(1, min(_SMALL, np.iinfo(dtype).max), shape).astype(dtype)
    if dtype in ("float16", "float32", "float64"):
        return numbers.standard_normal(shape).astype(dtype)
    raise InvalidArgument(f"input {name!r} is {dtype}: give real inputs (--inputs FILE.npz)")


def of_batch(sample: Sample, batch: int, has_batch: bool) -> Sample:
    """The sample repeated to a batch. Raises InvalidArgument where the model has none."""
    if batch == 1:
        return sample
    if not has_batch:
        raise InvalidArgument(f"batch {batch}: the model's first extent is fixed, so only batch 1 can be tuned")
    return {name: np.repeat(array, batch, axis=0) for name, array in sample.items()}
