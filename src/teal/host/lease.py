"""The client's end of what tells the host that an output in a region of its own is still held (leases.py)."""

from __future__ import annotations

import contextlib
import os


class Lease:
    """The client's end: closed when nobody holds it any more."""

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
