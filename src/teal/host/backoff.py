"""When what keeps ending is started again: soon the first time, then ever later, and soon again once it has been well.

Theory of operation: a pure state machine; time comes in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """first, most: seconds before the first and the later attempts (doubling); health: after so many seconds without a
    failure it begins anew."""

    first: float = 0.1
    most: float = 30.0
    health: float = 60.0
    failures: int = 0
    _well_since: float | None = None

    def began(self, now: float) -> None:
        """It serves."""
        self._well_since = now

    def failed(self, now: float) -> float:
        """It ended: how many seconds until it is started again."""
        if self._well_since is not None and now - self._well_since >= self.health:
            self.failures = 0
        self._well_since = None
        delay = min(self.most, self.first * 2.0 ** min(self.failures, 64))
        self.failures += 1
        return delay
