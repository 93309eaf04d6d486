"""Where an agent runs: on a core of its own, or on the host's, moved by load and without flapping.

Theory of operation: a core of its own pays while there is much to decide; when there is little, the agent can share the
workers' cores and leave its own to others. Looked at now and then, with how busy the agent was (by its own figures) and
how many events it saw. Three things keep it from going to and fro: two thresholds with room between them, a time that a
load must last before it counts (longer for the way back: a core too few hurts more than one too many), and a stay that
doubles each time a move was taken back soon. A pure state machine; time comes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Place(StrEnum):
    OFFLOAD = "offload"  # a core of its own
    HOST = "host"  # the workers' cores


@dataclass(frozen=True, slots=True)
class Rule:
    """busy_out, events_out: a share of a core, or events a second, above which it gets its own core; busy_back,
    events_back: below both it goes back. Seconds: settle_out, settle_back: so long the load must last; stay: least time
    between moves; flap: a move taken back within this doubles the stay, up to most_stay; calm: without a move for so
    long it begins anew."""

    busy_out: float = 0.25
    busy_back: float = 0.08
    events_out: float = 50_000.0
    events_back: float = 10_000.0
    settle_out: float = 0.2
    settle_back: float = 2.0
    stay: float = 1.0
    flap: float = 10.0
    most_stay: float = 60.0
    calm: float = 120.0


class Placement:
    """``look`` at a steady pace; it says where to move, or None."""

    def __init__(self, start: Place, now: float, rule: Rule | None = None) -> None:
        self.rule = Rule() if rule is None else rule
        self.place = start
        self.moves = 0
        self._stay = self.rule.stay
        self._moved: float | None = None
        self._now = now
        self._since: float | None = None  # the load asks for the other place since then

    def look(self, now: float, busy: float, events: float) -> Place | None:
        """busy: share of a core spent on events and decisions since the last look; events: a second."""
        self._now = now
        if not self._asks(busy, events):
            self._since = None
            return None
        if self._since is None:
            self._since = now
        settle = self.rule.settle_out if self.place is Place.HOST else self.rule.settle_back
        if now - self._since < settle or (self._moved is not None and now - self._moved < self._stay):
            return None
        return self._move(now)

    def _asks(self, busy: float, events: float) -> bool:
        """Does this load belong to the other place?"""
        rule = self.rule
        if self.place is Place.HOST:
            return busy > rule.busy_out or events > rule.events_out
        return busy < rule.busy_back and events < rule.events_back

    def _move(self, now: float) -> Place:
        if self._moved is not None:
            if now - self._moved < max(self.rule.flap, 2 * self._stay):
                self._stay = min(self.rule.most_stay, 2 * self._stay)
            elif now - self._moved >= self.rule.calm:
                self._stay = self.rule.stay
        self._moved = now
        self._since = None
        self.moves += 1
        self.place = Place.HOST if self.place is Place.OFFLOAD else Place.OFFLOAD
        return self.place
