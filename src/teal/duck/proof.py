"""Whether a blob that came over the wire is what its SHA-256 says: known a moment after all of it is there.

Theory of operation: hashing takes longer than a fast link does. Until the network loop has done it, the blob belongs to
the client that sent it and to nobody else: what it sent is what its own sessions see. Everybody else waits here.
"""

from __future__ import annotations

import threading

from teal.duck.owner import Owner

_WAIT_S = 60.0


class Proof:
    """Of one blob."""

    def __init__(self, connection: int) -> None:
        self.connection = connection
        self._known = threading.Event()
        self._good = False

    def is_of(self, owner: Owner | None) -> bool:
        """Did this client send it?"""
        return owner is not None and owner.connection == self.connection != 0

    def settle(self, *, good: bool) -> None:
        self._good = good
        self._known.set()

    @property
    def known(self) -> bool:
        return self._known.is_set()

    @property
    def good(self) -> bool:
        """It is known, and it is."""
        return self.known and self._good

    def wait(self) -> bool:
        """Waits until it is known, a minute at most."""
        return self._known.wait(_WAIT_S) and self._good
