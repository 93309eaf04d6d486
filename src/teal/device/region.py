"""A region as this process maps it: what a device imports.

The rules of all APIs together: the base on a page of 4096 bytes, the size a whole number of them. CPU runtimes work
without and GPUs then copy in silence, so the rules are checked here, always.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np

from teal.errors import InvalidArgument, QuotaExceeded

PAGE = 4096


def check_importable(address: int, nbytes: int) -> None:
    """Raises InvalidArgument for memory that some device could not import without a copy."""
    if nbytes <= 0 or nbytes % PAGE:
        raise InvalidArgument(
            f"region: {nbytes} bytes, expected a multiple of {PAGE}: import the whole region, not a slice"
        )
    if address % PAGE:
        raise InvalidArgument(
            f"region: base at {address:#x}, expected a multiple of {PAGE}: import the whole region, not a slice"
        )


class MappedRegion:
    """Shared memory of a memfd, mapped in this process. `bytes` is a uint8 array over all of it."""

    def __init__(self, mapping: Any, *, writable: bool = True, probe_at: int | None = None) -> None:
        """Over an object with a buffer (an mmap, an array); probe_at: 128 bytes that an import may write (and
        restores)."""
        self.bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(mapping, np.uint8)
        self.nbytes = self.bytes.nbytes
        self.address = int(self.bytes.ctypes.data)
        self.writable = writable
        check_importable(self.address, self.nbytes)
        self.probe_at = PAGE - 128 if probe_at is None else probe_at
        if self.probe_at % 64 or not 0 <= self.probe_at <= self.nbytes - 128:
            raise InvalidArgument(f"probe_at: {self.probe_at}, expected a multiple of 64 with 128 bytes after it")
        self._mapping = mapping

    @classmethod
    def create(cls, nbytes: int) -> MappedRegion:
        """New anonymous shared memory of at least nbytes, its pages reserved. Raises QuotaExceeded."""
        size = -(-max(nbytes, 1) // PAGE) * PAGE
        fd = os.memfd_create("teal-device", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)
            return cls(mmap.mmap(fd, size))
        except OSError as error:
            raise QuotaExceeded(f"region of {size} bytes: {error.strerror}; free memory, or ask for less") from None
        finally:
            os.close(fd)

    @classmethod
    def map(cls, fd: int, *, writable: bool = True, probe_at: int | None = None) -> MappedRegion:
        """Maps all of a descriptor's memory; the descriptor stays the caller's."""
        flags = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return cls(mmap.mmap(fd, 0, prot=flags), writable=writable, probe_at=probe_at)

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """A view of the region: offset in bytes. Raises InvalidArgument when it does not fit."""
        nbytes = int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
        if offset < 0 or nbytes < 0 or nbytes > self.nbytes or offset > self.nbytes - nbytes:
            raise InvalidArgument(
                f"view of {nbytes} bytes at {offset} does not lie in the region's {self.nbytes} bytes"
            )
        view: np.ndarray[Any, Any] = self.bytes[offset : offset + nbytes].view(dtype)
        return view.reshape(shape)

    def pointer(self, offset: int = 0) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.address + offset)
