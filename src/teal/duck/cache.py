"""A content-addressed cache of blobs: in memory within a budget, and on disk.

Theory of operation: those used least recently leave memory first; what a session has mapped stays. On disk (shelf.py)
is whatever arrived, so that what left memory, or was there before a restart, comes back without crossing the wire
again. A blob whose digest is still being computed (proof.py) is its sender's; others wait until it is known.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from teal.duck.blob import Blob
from teal.duck.owner import Owner
from teal.duck.proof import Proof
from teal.duck.shelf import Shelf
from teal.errors import NotFound, QuotaExceeded


@dataclass(frozen=True, slots=True)
class CacheNumbers:
    """Of one cache. hits: found in memory; disk_hits: read from disk; refused: damaged files that were removed."""

    kind: str
    blobs: int
    bytes: int
    most_bytes: int
    hits: int
    misses: int
    stored: int
    evicted: int
    folder: str | None
    disk_files: int
    disk_bytes: int
    disk_hits: int
    disk_stored: int
    disk_refused: int
    disk_evicted: int
    note: str


class Cache:
    """Blobs of one kind (programs or data). Thread-safe."""

    def __init__(self, kind: str, most_bytes: int, shelf: Shelf) -> None:
        self.kind = kind
        self._most_bytes = most_bytes
        self._shelf = shelf
        self._guard = threading.Lock()  # guards all below
        self._blobs: OrderedDict[str, Blob] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._hits = self._misses = self._stored = self._evicted = 0

    @property
    def kept(self) -> bool:
        """On disk too?"""
        return self._shelf.path is not None

    def has(self, digest: str, owner: Owner | None = None) -> bool:
        """In memory or on disk."""
        self._wait_for_proof(digest, owner)
        with self._guard:
            return digest in self._blobs or self._shelf.has(digest)

    def use(self, digest: str, owner: Owner | None = None) -> Blob:
        """The blob, which stays until ``release``. Raises NotFound, QuotaExceeded."""
        self._wait_for_proof(digest, owner)
        with self._guard:
            found = self._blobs.get(digest)
            if found is not None:
                self._hits += 1
                self._blobs.move_to_end(digest)
                found.users += 1
                return found
        read = self._shelf.find(digest)
        with self._guard:
            if read is None:
                self._misses += 1
                raise NotFound(f"{self.kind} blob {digest[:16]}… is not in the cache of this duck; send it again")
            return self._put(read)

    def add(self, blob: Blob) -> Blob:
        """Takes a blob (also when it raises), and returns the one that is kept, in use. Raises QuotaExceeded."""
        with self._guard:
            kept = self._put(blob)
            self._stored += 1
        if kept.proof is None:
            self._shelf.store(kept)
        elif kept.proof.known:  # in the meantime
            self.proven(kept.digest, kept.proof)
        return kept

    def proven(self, digest: str, proof: Proof) -> None:
        """What was in doubt is everybody's now, or was no such thing and goes, whoever has it."""
        with self._guard:
            blob = self._blobs.get(digest)
            if blob is None or blob.proof is not proof:
                return
            if not proof.good:
                self._drop(blob)
                return
            blob.proof = None
            blob.users += 1
        self._shelf.store(blob)
        self.release(blob)

    def _wait_for_proof(self, digest: str, owner: Owner | None) -> None:
        with self._guard:
            blob = self._blobs.get(digest)
            proof = None if blob is None else blob.proof
        if proof is not None and not proof.is_of(owner) and not proof.wait():
            raise NotFound(f"{self.kind} blob {digest[:16]}… is not what it was called; send it again")

    def release(self, blob: Blob) -> None:
        with self._guard:
            blob.users -= 1

    @contextmanager
    def using(self, digest: str) -> Iterator[Blob]:
        """``use`` for a while."""
        blob = self.use(digest)
        try:
            yield blob
        finally:
            self.release(blob)

    def forget(self) -> int:
        """Drops what nobody uses, on disk too. Returns how many blobs went from memory."""
        with self._guard:
            idle = [blob for blob in self._blobs.values() if blob.users == 0]
            for blob in idle:
                self._drop(blob)
        self._shelf.forget()
        return len(idle)

    def _put(self, blob: Blob) -> Blob:
        there = self._blobs.get(blob.digest)
        if there is not None:
            blob.close()
        else:
            self._make_room(blob)
            self._blobs[blob.digest] = there = blob
            self._bytes += blob.held
        there.users += 1
        self._blobs.move_to_end(there.digest)
        return there

    def _make_room(self, blob: Blob) -> None:
        idle = [other for other in self._blobs.values() if other.users == 0]
        needed = self._bytes + blob.held - self._most_bytes
        if needed > sum(other.held for other in idle):
            in_use = sum(other.held for other in self._blobs.values() if other.users > 0)
            nbytes = blob.nbytes
            blob.close()
            raise QuotaExceeded(
                f"{nbytes} bytes of {self.kind}: this duck keeps at most {self._most_bytes} of it, and sessions have "
                f"{in_use} mapped; close some, or give the duck more --memory"
            )
        for other in idle:
            if needed <= 0:
                break
            needed -= other.held
            self._drop(other)
            self._evicted += 1

    def _drop(self, blob: Blob) -> None:
        del self._blobs[blob.digest]
        self._bytes -= blob.held
        blob.close()

    def numbers(self) -> CacheNumbers:
        files, on_disk = self._shelf.numbers()
        folder = self._shelf.path
        with self._guard:
            return CacheNumbers(
                self.kind, len(self._blobs), self._bytes, self._most_bytes, self._hits, self._misses, self._stored,
                self._evicted, None if folder is None else str(folder), files, on_disk, self._shelf.hits,
                self._shelf.stored, self._shelf.refused, self._shelf.evicted, self._shelf.note,
            )  # fmt: skip

    def close(self) -> None:
        with self._guard:
            for blob in self._blobs.values():
                blob.close()
            self._blobs.clear()
        self._shelf.close()
