"""A .pt2 file: a zip archive of torch's, read without unpickling and without copying its weights.

Theory of operation: the archive holds, under one folder, ``models/NAME.json`` (a program: pt2_program.py),
``data/weights/…`` and ``data/constants/…`` (raw bytes, described by a JSON beside them) and, after AOTInductor,
``data/aotinductor/NAME/*.so`` (native code). Records are stored, not compressed, so that a weight is a view of the
mapped file. What only pickle could read is refused: torch's own reader would unpickle it, and that runs any code.
torch.compile's programs (docs/compile.md) have their weights elsewhere: in sealed regions that come with the file, at
places that ``extra/teal.json`` names, by region, offset, bytes, dtype, shape and strides.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from teal.errors import InvalidArgument, NotFound

_LOCAL_HEADER = 30
_MODELS, _NATIVE = "models/", "data/aotinductor/"
_ELSEWHERE = "extra/teal.json"
_MOST_RECORDS = 1 << 18
# torch._export.serde.schema.ScalarType
_DTYPES: dict[int, torch.dtype] = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16, 28: torch.uint16,
    29: torch.float8_e4m3fn, 30: torch.float8_e5m2, 34: torch.uint32, 35: torch.uint64,
}  # fmt: skip


def dtype_of(number: int) -> torch.dtype:
    """Raises InvalidArgument for one that Teal does not pass."""
    dtype = _DTYPES.get(number)
    if dtype is None:
        raise InvalidArgument(f"dtype number {number} of torch's schema, expected one of numbers, bool or bfloat16")
    return dtype


def dtype_named(name: str) -> torch.dtype:
    """Raises ValueError for one that Teal does not pass."""
    for dtype in _DTYPES.values():
        if str(dtype) == f"torch.{name}":
            return dtype
    raise ValueError(f"dtype {name[:40]!r}")


class _Reader(io.RawIOBase):
    """A mapping as zipfile takes it. The descriptor's own offset is shared with other processes."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._view = memoryview(mapping)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence]
        if start + offset < 0:
            raise OSError("a place before the file")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: Any) -> int:
        piece = self._view[self._at : self._at + len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._view.release()
        super().close()


class Archive:
    """The records of a mapped .pt2 file. ``sealed``: regions with weights. Raises InvalidArgument for what is none."""

    def __init__(self, mapping: mmap.mmap, shown: str, sealed: Sequence[mmap.mmap] = ()) -> None:
        self.shown = shown
        self._mapping = mapping
        self._sealed = sealed
        self._records: dict[str, tuple[int, int]] = {}  # name → offset, size
        try:
            with _Reader(mapping) as reader, zipfile.ZipFile(reader) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
            raise InvalidArgument(f"{shown}: not a .pt2 file, expected one of torch.export.save(): {error}") from None
        if len(entries) > _MOST_RECORDS:
            raise InvalidArgument(f"{shown}: {len(entries)} records, expected at most {_MOST_RECORDS}")
        for entry in entries:
            _, _, name = entry.filename.partition("/")
            if name and not entry.is_dir():
                self._records[name] = self._place(entry)
        if "archive_format" not in self._records or self.read("archive_format") != b"pt2":
            raise InvalidArgument(f"{shown}: a zip file, but not a .pt2 one; save it with torch.export.save()")

    def _place(self, entry: zipfile.ZipInfo) -> tuple[int, int]:
        start, size = entry.header_offset, entry.file_size
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != size:
            raise InvalidArgument(f"{self.shown}: record {entry.filename[:80]!r} is compressed, expected it stored")
        header = self._mapping[start : start + _LOCAL_HEADER] if 0 <= start < len(self._mapping) else b""
        if len(header) == _LOCAL_HEADER and header.startswith(b"PK\3\4"):
            start += _LOCAL_HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            if start + size <= len(self._mapping):
                return start, size
        raise InvalidArgument(f"{self.shown}: record {entry.filename[:80]!r} is not in the file; it was cut off")

    def programs(self) -> list[str]:
        """Names of its exported programs."""
        return [
            name[len(_MODELS) : -5] for name in self._records if name.startswith(_MODELS) and name.endswith(".json")
        ]

    def natives(self) -> dict[str, str]:
        """Record of the library of each model that AOTInductor made, by name of the model."""
        found = {}
        for name in self._records:
            if name.startswith(_NATIVE) and name.endswith(".so"):
                found[name[len(_NATIVE) :].partition("/")[0]] = name
        return found

    def read(self, name: str) -> bytes:
        """Raises NotFound."""
        if name not in self._records:
            raise NotFound(f"{self.shown}: record {name[:80]!r}")
        start, size = self._records[name]
        return self._mapping[start : start + size]

    def tensors(self, model: str, kind: str) -> dict[str, torch.Tensor]:
        """The ``weights`` or ``constants`` of a model by name, as views of the file.

        Raises InvalidArgument for what lies about its size, or would have to be unpickled.
        """
        folder = f"data/{kind}/"
        if f"{folder}{model}.pt" in self._records:
            raise InvalidArgument(
                f"{self.shown}: an old file with pickled {kind}; save it anew with torch {_version()}"
            )
        name = f"{folder}{model}_{kind}_config.json"
        found: dict[str, torch.Tensor] = {}
        try:
            elsewhere = self._elsewhere()
            described = json.loads(self.read(name))["config"]
            for key, about in described.items():
                if about["use_pickle"] or about["tensor_meta"] is None:
                    raise InvalidArgument(
                        f"{self.shown}: {key[:80]!r} is pickled, and Teal unpickles nothing; export the model with "
                        "plain tensors"
                    )
                here = key not in elsewhere
                found[key] = self._tensor(folder + about["path_name"], about["tensor_meta"]) if here else elsewhere[key]
        except (ValueError, KeyError, TypeError, AttributeError, NotFound, RecursionError, RuntimeError) as error:
            raise InvalidArgument(
                f"{self.shown}: {name} makes no sense ({type(error).__name__}: {error}); save it anew"
            ) from None
        return found

    def _elsewhere(self) -> dict[str, torch.Tensor]:
        """Weights that lie in sealed regions, by name. Raises what a lie in their description does."""
        if not self._sealed or _ELSEWHERE not in self._records:
            return {}
        found = {}
        for key, (region, offset, nbytes, dtype, shape, stride) in json.loads(self.read(_ELSEWHERE))["weights"].items():
            if min((region, offset, nbytes, *shape, *stride)) < 0 or len(shape) != len(stride):
                raise ValueError(f"{key[:80]!r}: shape {shape} with strides {stride} at {offset}")
            plain = dtype_named(dtype)
            last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            if math.prod(shape) == 0:
                found[key] = torch.empty(shape, dtype=plain)
            elif (last + 1) * plain.itemsize > nbytes or offset % plain.itemsize:
                raise ValueError(f"{key[:80]!r} has {nbytes} bytes at {offset}, {(last + 1) * plain.itemsize} are used")
            else:
                raw = torch.frombuffer(self._sealed[region], dtype=torch.uint8, count=nbytes, offset=offset)
                found[key] = raw.view(plain).as_strided(shape, stride)
        return found

    def _tensor(self, name: str, meta: Mapping[str, Any]) -> torch.Tensor:
        if meta["device"]["type"] != "cpu":
            raise InvalidArgument(
                f"{self.shown}: it runs on {meta['device']['type'][:20]!r}; export it on the CPU: model.cpu() first"
            )
        dtype = dtype_of(meta["dtype"])
        sizes = [int(each["as_int"]) for each in meta["sizes"]]
        strides = [int(each["as_int"]) for each in meta["strides"]]
        first = int(meta["storage_offset"]["as_int"])
        if min((first, *sizes, *strides)) < 0 or len(sizes) != len(strides):
            raise ValueError(f"shape {sizes} with strides {strides} from {first}")
        if math.prod(sizes) == 0:
            return torch.empty(sizes, dtype=dtype)
        if name not in self._records:
            raise NotFound(f"record {name[:80]!r}")
        start, nbytes = self._records[name]
        last = first + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if (last + 1) * dtype.itemsize > nbytes:
            raise ValueError(f"{name[:80]!r} has {nbytes} bytes, {(last + 1) * dtype.itemsize} are used")
        raw = torch.frombuffer(self._mapping, dtype=torch.uint8, count=nbytes, offset=start)
        whole = nbytes // dtype.itemsize * dtype.itemsize
        flat = raw[:whole] if raw.data_ptr() % dtype.itemsize == 0 else raw[:whole].clone()
        return flat.view(dtype).as_strided(sizes, strides, first)


def _version() -> str:
    return str(torch.__version__).partition("+")[0]
