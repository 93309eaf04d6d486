"""Parameters and buffers in sealed memory that workers map too.

Theory of operation: the tensors of a graph that stay what they are get written once into a memfd, storage by storage;
what nobody else shares is then pointed at a private (copy-on-write) mapping of the same pages, so that its old memory
is free before the next one is written. When all are written the file is sealed: from then on nobody can change what a
worker reads. Their owner may still change a parameter in every way that PyTorch knows: the page that is written becomes
the process's own, and what the worker has is seen to be old. Three things tell: the version counter (optimizers,
load_state_dict), the address (``.data = …``), and the page table, which sees what counters do not: ``.data.add_`` and
NumPy views. Where a tensor lies is kept (``_places``), so that every graph that has it uses the same memory.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from teal import _core
from teal.compile.program import DTYPES, weight_name
from teal.compile.record import record
from teal.errors import InvalidArgument, QuotaExceeded
from teal.host.repository import is_sealed
from teal.host.wire import MAX_SEALED

_ALIGN = 256
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Region:
    """Sealed memory with weights, and this process's private mapping of it; both last while somebody uses either."""

    def __init__(self, fd: int) -> None:
        """Takes the descriptor over."""
        self.fd = fd
        weakref.finalize(self, os.close, fd)
        self.nbytes = os.fstat(fd).st_size
        self._memory = mmap.mmap(fd, self.nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    @classmethod
    def empty(cls, nbytes: int) -> Region:
        """Not sealed yet. Raises QuotaExceeded when there is no memory for it."""
        if nbytes > (available := _core.available_memory()):
            raise QuotaExceeded(f"weights of {nbytes} bytes: only {available} bytes of memory are available")
        fd = os.memfd_create("teal:weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            os.close(fd)
            raise QuotaExceeded(f"weights of {nbytes} bytes: no memory for them ({error.strerror})") from None
        return cls(fd)

    @classmethod
    def received(cls, fd: int) -> Region:
        """What a host handed out. Raises InvalidArgument when somebody could still change it."""
        if not is_sealed(fd):
            os.close(fd)
            raise InvalidArgument("the host handed out weights that are not sealed")
        return cls(fd)

    def write(self, at: int, raw: memoryview) -> None:
        while raw:
            wrote = os.pwrite(self.fd, raw[: 1 << 30], at)
            raw = raw[wrote:]
            at += wrote

    def seal(self) -> None:
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)

    def again(self) -> Region:
        """The same memory, mapped anew: without what this process has written into its mapping."""
        return Region(os.dup(self.fd))

    def bytes_at(self, at: int, nbytes: int) -> torch.Tensor:
        """As a tensor with a storage of its own."""
        return torch.frombuffer(self._memory, dtype=torch.uint8, offset=at, count=nbytes)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's elements lie in sealed memory, and what it looked like then."""

    region: Region
    offset: int  # of its first element
    moved: bool  # it shows the mapping of these pages
    version: int
    address: int
    digest: bytes

    def holds(self, tensor: torch.Tensor) -> bool:
        """Does it still say what the tensor contains?"""
        if version_of(tensor) != self.version or tensor.data_ptr() != self.address:
            return False
        return not (self.moved and touched(self.address, self.address + span_of(tensor)))


_places: Any = WeakTensorKeyDictionary()
_sealing = threading.RLock()  # guards _places, and tensors while they move


def version_of(tensor: torch.Tensor) -> int:
    """Of its version counter; tensors of inference mode have none."""
    return -1 if tensor.is_inference() else int(tensor._version)


def span_of(tensor: torch.Tensor) -> int:
    """Bytes from its first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def touched(start: int, end: int) -> bool:
    """Has this process written into a private mapping there? False where the kernel cannot tell."""
    return _core.private_pages(start, end) > 0


class Weights:
    """The weights of one graph: its tensors by position, where they lie, what a worker has to know of it."""

    def __init__(self, tensors: Sequence[torch.Tensor], places: Sequence[Place]) -> None:
        self.watched = tuple(
            (id(tensor), place.version, place.address) for tensor, place in zip(tensors, places, strict=True)
        )
        self.regions = _distinct([place.region for place in places])
        self.ranges = _merged(
            [(p.address, p.address + span_of(t)) for t, p in zip(tensors, places, strict=True) if p.moved]
        )
        self._references = [weakref.ref(tensor) for tensor in tensors]

    def alive(self) -> bool:
        """Do all of its tensors still exist? What is watched are their identities."""
        return all(reference() is not None for reference in self._references)


def digests_of(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """SHA-256 of each tensor's bytes, as they are in its memory; known already where a tensor lies in sealed memory."""
    with _sealing:
        return [_digest_of(tensor) for tensor in tensors]


def content_of(tensors: Sequence[torch.Tensor], digests: Sequence[bytes]) -> str:
    """One SHA-256 for all of them."""
    whole = hashlib.sha256()
    for tensor, digest in zip(tensors, digests, strict=True):
        whole.update(repr((tensor.dtype, tuple(tensor.shape), tensor.stride())).encode())
        whole.update(digest)
    return whole.hexdigest()


def layout_of(tensors: Sequence[torch.Tensor], places: Sequence[Place]) -> dict[str, Any]:
    """What the program's file says of its weights: region, offset, bytes, dtype, shape and strides by input."""
    regions = _distinct([place.region for place in places])
    return {
        weight_name(i): [
            regions.index(place.region), place.offset, span_of(tensor), DTYPES[tensor.dtype], list(tensor.shape),
            list(tensor.stride()),
        ]
        for i, (tensor, place) in enumerate(zip(tensors, places, strict=True))
    }  # fmt: skip


def sealed(tensors: Sequence[torch.Tensor], digests: Sequence[bytes], *, move: bool) -> list[Place]:
    """Their places, in sealed memory. Raises QuotaExceeded."""
    with _sealing:
        places = [_places.get(tensor) for tensor in tensors]
        known = [
            place if place is not None and place.holds(t) else None for t, place in zip(tensors, places, strict=True)
        ]
        if len(_distinct([place.region for place in known if place is not None])) >= MAX_SEALED:
            known = [None] * len(tensors)  # a load brings only so many regions: all into one
        missing = [i for i, place in enumerate(known) if place is None]
        if missing:
            _seal([tensors[i] for i in missing], [digests[i] for i in missing], move)
        return [_places[tensor] for tensor in tensors]


def adopted(
    tensors: Sequence[torch.Tensor],
    digests: Sequence[bytes],
    layout: dict[str, Any],
    regions: list[Region],
    *,
    move: bool,
) -> list[Place]:
    """Their places where somebody has sealed the same contents already. Raises InvalidArgument."""
    with _sealing:
        where = []
        for i, tensor in enumerate(tensors):
            number, offset, nbytes, dtype, shape, stride = layout[weight_name(i)]
            if [nbytes, dtype, shape, stride] != [
                span_of(tensor),
                DTYPES[tensor.dtype],
                list(tensor.shape),
                list(tensor.stride()),
            ]:
                raise InvalidArgument(
                    f"weight {i} is {dtype} {shape} in the resident program, expected {tuple(tensor.shape)}"
                )
            where.append((regions[number], offset))
        for group in _groups(tensors):
            first = min(group, key=lambda i: tensors[i].data_ptr())
            region, offset = where[first]
            start = tensors[first].data_ptr()
            together = all(
                where[i] == (region, offset + tensors[i].data_ptr() - start) for i in group if tensors[i].numel()
            )
            _settle([tensors[i] for i in group], [digests[i] for i in group], region, offset, move=move and together)
            if not together:
                for i in group:
                    _places[tensors[i]] = _place(tensors[i], *where[i], False, digests[i])
        return [_places[tensor] for tensor in tensors]


# ---- inside ------------------------------------------------------------------------------------------------------


def _digest_of(tensor: torch.Tensor) -> bytes:
    place = _places.get(tensor)
    if place is not None and place.holds(tensor):
        return bytes(place.digest)
    return hashlib.sha256(_raw(tensor.data_ptr(), span_of(tensor))).digest()


def _raw(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B") if nbytes else memoryview(b"")


def _groups(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Positions of tensors that share a storage, together; one of several positions of the same tensor."""
    groups: dict[int, list[int]] = {}
    seen: set[int] = set()
    for i, tensor in enumerate(tensors):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            groups.setdefault(tensor.untyped_storage()._cdata, []).append(i)
    return list(groups.values())


def _bounds(group: Sequence[torch.Tensor]) -> tuple[int, int]:
    full = [tensor for tensor in group if tensor.numel()]
    if not full:
        return 0, 0
    return min(t.data_ptr() for t in full), max(t.data_ptr() + span_of(t) for t in full)


def _seal(tensors: Sequence[torch.Tensor], digests: Sequence[bytes], move: bool) -> None:
    groups = _groups(tensors)
    sizes = []
    for group in groups:
        start, end = _bounds([tensors[i] for i in group])
        sizes.append((end - start + _ALIGN - 1) // _ALIGN * _ALIGN)
    region = Region.empty(max(mmap.PAGESIZE, sum(sizes)))
    offset = 0
    for group, size in zip(groups, sizes, strict=True):
        members = [tensors[i] for i in group]
        start, end = _bounds(members)
        region.write(offset, _raw(start, end - start))
        _settle(members, [digests[i] for i in group], region, offset, move=move)
        offset += size
    region.seal()
    record.count("sealed_bytes", offset)


def _settle(
    members: Sequence[torch.Tensor], digests: Sequence[bytes], region: Region, offset: int, *, move: bool
) -> None:
    """Tensors of one storage whose first byte lies at ``offset``: moved there, if they may be."""
    start, end = _bounds(members)
    moved = move and end > start and _may_move(members)
    if moved:
        memory = region.bytes_at(offset, end - start)
    for tensor, digest in zip(members, digests, strict=True):
        at = tensor.data_ptr() - start if tensor.numel() else 0
        if moved and tensor.numel():
            typed = memory[at : at + span_of(tensor)].view(tensor.dtype)
            tensor.data = typed.as_strided(tensor.shape, tensor.stride())
        _places[tensor] = _place(tensor, region, offset + at, moved, digest)
    record.count("moved_bytes" if moved else "left_bytes", end - start)


def _place(tensor: torch.Tensor, region: Region, offset: int, moved: bool, digest: bytes) -> Place:
    return Place(region, offset, moved, version_of(tensor), tensor.data_ptr(), digest)


def _may_move(members: Sequence[torch.Tensor]) -> bool:
    """Nobody but these tensors shows the storage: else another view of it would be left behind."""
    if any(tensor.is_inference() or type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in members):
        return False
    storage = members[0].untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) <= len(members) + 1


def _distinct(regions: Sequence[Region]) -> list[Region]:
    return list(dict.fromkeys(regions))


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours as one: the page table is walked once."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start - merged[-1][1] < mmap.PAGESIZE:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
