"""The flat buffer: one stretch of memory that all requests of the classic protocol index.

Theory of operation: a memfd, so that page-aligned parts of it can be mapped into a box where they are. Its pages are
had when something is written to them, and given back when whole pages are cleared. Every range that a client names is
checked here before it is used; Python's numbers do not overflow.
"""

from __future__ import annotations

import hashlib
import mmap
import os

PAGE = 4096
_STEP = 4 << 20  # compared or hashed at once


class Buffer:
    """``nbytes`` of zeros. Not thread-safe: who runs a program in it lets nobody else at it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.fd = os.memfd_create("teal:classic", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, nbytes)
        self._map = mmap.mmap(self.fd, nbytes)
        self.view = memoryview(self._map)

    def has(self, offset: int, length: int) -> bool:
        """Does the range lie in the buffer?"""
        return 0 <= offset <= self.nbytes and 0 <= length <= self.nbytes - offset

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.view[offset : offset + length])

    def write(self, offset: int, data: memoryview | bytes) -> None:
        self.view[offset : offset + len(data)] = data

    def clear(self, offset: int, length: int) -> None:
        """Zeros. Whole pages go back to the system, which costs the same for any number of them that was not used."""
        end = offset + length
        first, last = -(-offset // PAGE) * PAGE, end // PAGE * PAGE
        if first >= last:
            self.view[offset:end] = bytes(length)
            return
        self._map.madvise(mmap.MADV_REMOVE, first, last - first)
        self.view[offset:first] = bytes(first - offset)
        self.view[last:end] = bytes(end - last)

    def copy(self, target: int, source: int, length: int) -> None:
        self.view[target : target + length] = self.view[source : source + length]

    def same(self, a: int, b: int, length: int) -> bool:
        for at in range(0, length, _STEP):
            step = min(_STEP, length - at)
            if self.read(a + at, step) != self.read(b + at, step):
                return False
        return True

    def digest(self, offset: int, length: int) -> str:
        """SHA-256, in hexadecimal."""
        return hashlib.sha256(self.view[offset : offset + length]).hexdigest()

    def close(self) -> None:
        self.view.release()
        self._map.close()
        os.close(self.fd)


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Have the ranges (offset, length) a byte in common?"""
    return max(a[0], b[0]) < min(a[0] + a[1], b[0] + b[1])
