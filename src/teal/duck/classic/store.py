"""A named cache of the classic protocol: elf or data, by a digest that the client makes.

Theory of operation: nobody here knows how a client makes its digests (256 bits), so they are names. What a name means
is kept under its SHA-256 in the duck's own cache (duck/cache.py), in memory within its budget and on disk, and this
keeps (name, SHA-256) of the names used last. A name that is the SHA-256 itself is also found when it was stored by
another client, or before a restart. A name stands for one content: storing another one under it is refused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from teal.duck import blob as blobs
from teal.duck.blob import Blob
from teal.duck.cache import Cache
from teal.errors import NotFound, QuotaExceeded

MOST = {"elf": 1000, "data": 100_000}  # names


class Store:
    """Thread-safe. ``most``: names that are kept."""

    def __init__(self, cache: Cache, most: int) -> None:
        self._cache = cache
        self._most = most
        self._guard = threading.Lock()  # guards all below
        self._names: OrderedDict[str, str] = OrderedDict()  # → SHA-256; least recently used first
        self.hits = self.misses = self.stored = self.evicted = 0

    @contextmanager
    def using(self, name: str, length: int) -> Iterator[Blob | None]:
        """What the name stands for, if it is there and has exactly that length."""
        with self._guard:
            digest = self._names.get(name)
        blob: Blob | None = None
        try:
            blob = self._cache.use(digest or name)
        except (NotFound, QuotaExceeded):
            pass
        fits = blob is not None and blob.nbytes == length
        with self._guard:
            self.hits, self.misses = self.hits + fits, self.misses + (not fits)
            if blob is None:
                self._names.pop(name, None)
            else:
                self._keep(name, blob.digest)
        try:
            yield blob if fits else None
        finally:
            if blob is not None:
                self._cache.release(blob)

    def store(self, name: str, data: memoryview) -> bool:
        """Keeps a copy. False: the name stands for something else, or there is no room."""
        if not data:
            return False
        try:
            blob = blobs.from_bytes(data)
        except QuotaExceeded:
            return False
        digest = blob.digest
        with self._guard:
            known = self._names.get(name)
        if known not in (None, digest):
            blob.close()
            return False
        try:
            self._cache.release(self._cache.add(blob))
        except QuotaExceeded:
            return False
        with self._guard:
            self.stored += known is None
            self._keep(name, digest)
        return True

    def _keep(self, name: str, digest: str) -> None:
        self._names[name] = digest
        self._names.move_to_end(name)
        while len(self._names) > self._most:
            self._names.popitem(last=False)
            self.evicted += 1

    def forget(self) -> None:
        """The names, not the contents."""
        with self._guard:
            self._names.clear()

    def numbers(self) -> dict[str, int]:
        """Names and their limit, bytes of the cache and their limit, counters."""
        held = self._cache.numbers()
        with self._guard:
            return {
                "objects": len(self._names),
                "most_objects": self._most,
                "bytes": held.bytes,
                "most_bytes": held.most_bytes,
                "hits": self.hits,
                "misses": self.misses,
                "stored": self.stored,
                "evicted": self.evicted,
            }
