"""Bytes of a caller that a duck elsewhere is to have: they are hashed and sent from where they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager


class Lent:
    """Like a Blob (blob.py) without memory of its own; the bytes must stay as they are while it is used."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.nbytes = data.nbytes
        self.digest = hashlib.sha256(data).hexdigest()

    @contextmanager
    def view(self) -> Iterator[memoryview]:
        """Its bytes."""
        yield self._data

    def close(self) -> None:
        self._data.release()
