"""Blobs that have come over the wire, until a Put says what they are."""

from __future__ import annotations

import threading
import time

from teal.duck.blob import Blob
from teal.duck.owner import Owner
from teal.duck.proof import Proof

_WAIT_S = 60.0  # to be asked for


class Arrivals:
    """Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()  # guards both below
        self._settled = threading.Condition(self._guard)
        self._blobs: dict[str, tuple[float, Blob]] = {}
        self._proofs: dict[tuple[str, int], Proof] = {}  # by digest and connection: of what is being hashed

    def add(self, blob: Blob) -> None:
        with self._guard:
            before = self._blobs.pop(blob.digest, None)
            self._blobs[blob.digest] = (time.monotonic(), blob)
            if blob.proof is not None:
                self._proofs[blob.digest, blob.proof.connection] = blob.proof
        if before is not None:
            before[1].close()

    def settle(self, digest: str, connection: int, *, good: bool) -> Proof | None:
        """What came of it, or None if nobody waits for that."""
        with self._guard:
            proof = self._proofs.pop((digest, connection), None)
            if proof is None:
                return None
            proof.settle(good=good)
            self._settled.notify_all()
            held = self._blobs.get(digest)
            if not good and held is not None and held[1].proof is proof:
                del self._blobs[digest]
                held[1].close()
        return proof

    def take(self, owner: Owner, digest: str) -> Blob | None:
        """One that has come, if it is this client's to take."""
        with self._guard:
            found = self._blobs.get(digest)
            if found is None:
                return None
            blob = found[1]
            if blob.proof is not None and blob.proof.good:
                blob.proof = None
            if blob.proof is not None and not blob.proof.is_of(owner):
                return None
            del self._blobs[digest]
            return blob

    def wait(self, seconds: float) -> bool:
        """Until all that is being hashed is known."""
        with self._guard:
            return self._settled.wait_for(lambda: not self._proofs, seconds)

    def expire(self) -> None:
        """Gives up what nobody has asked for."""
        now = time.monotonic()
        with self._guard:
            late = [digest for digest, (since, _) in self._blobs.items() if now - since > _WAIT_S]
            dropped = [self._blobs.pop(digest)[1] for digest in late]
        for blob in dropped:
            blob.close()

    def close(self) -> None:
        with self._guard:
            for _, blob in self._blobs.values():
                blob.close()
            self._blobs.clear()
