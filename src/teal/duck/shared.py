"""Shared memory of a client that a duck on the same machine maps where it is.

Theory of operation: ``duck.empty()`` gives a tensor in a memfd of its own, on whole pages. The client keeps the
descriptor as long as the tensor or a view of it lives, and finds it by address: so a NumPy view of such a tensor is
known too, if it begins on a page.
"""

from __future__ import annotations

import bisect
import fcntl
import os
import threading
from dataclasses import dataclass
from typing import Any

from teal import _core
from teal.duck import blob as blobs


@dataclass(frozen=True, slots=True)
class Place:
    """Whole pages of a memfd. The descriptor is the segment's."""

    fd: int
    offset: int
    nbytes: int
    segment: int  # a number that no other segment of this process has


@dataclass(slots=True)
class _Segment:
    number: int
    address: int
    held: int
    fd: int


class Segments:
    """Those of one client. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # guards all below; a tensor may be collected in any place
        self._segments: list[_Segment] = []  # by address
        self._last = 0
        self._sizes: dict[tuple[int, int], int] = {}  # (segment, bytes): the number that boxes know it by
        self._gone: list[int] = []

    def empty(self, dtype: str, shape: tuple[int, ...]) -> _core.Tensor:
        """A tensor of zeros in a segment of its own. Raises InvalidArgument, QuotaExceeded."""
        nbytes = _core.tensor_bytes(dtype, shape)
        with self._guard:
            self._last += 1
            number = self._last
        fd = blobs.empty(blobs.pages(max(nbytes, 1)))
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            tensor, address = _core.map_tensor(fd, dtype, shape, lambda: self._forget(number))
        except BaseException:
            os.close(fd)
            raise
        with self._guard:
            segment = _Segment(number, address, blobs.pages(max(nbytes, 1)), fd)
            bisect.insort(self._segments, segment, key=lambda one: one.address)
        return tensor

    def find(self, address: int, nbytes: int) -> Place | None:
        """Where these bytes are, if they begin on a page of a segment."""
        with self._guard:
            at = bisect.bisect_right(self._segments, address, key=lambda one: one.address) - 1
            if at < 0 or nbytes == 0:
                return None
            segment = self._segments[at]
            offset = address - segment.address
            if offset % blobs.PAGE or offset + nbytes > segment.held:
                return None
            number = self._sizes.get((segment.number, nbytes))
            if number is None:
                self._last += 1
                number = self._sizes[segment.number, nbytes] = self._last
            return Place(segment.fd, offset, nbytes, number)

    def gone(self, known: int) -> tuple[list[int], int]:
        """Numbers of what is no more, from the ``known``-th on, and how many there were in all."""
        with self._guard:
            return self._gone[known : known + 1000], min(len(self._gone), known + 1000)

    def _forget(self, number: int) -> None:
        with self._guard:
            for at, segment in enumerate(self._segments):
                if segment.number == number:
                    del self._segments[at]
                    for key in [key for key in self._sizes if key[0] == number]:
                        self._gone.append(self._sizes.pop(key))
                    os.close(segment.fd)
                    return


def address_of(array: Any) -> tuple[int, int] | None:
    """(address, bytes) of the packed elements of an array in CPU memory, or None."""
    return _core.memory_of(array)
