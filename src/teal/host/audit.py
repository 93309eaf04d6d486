"""What happened to agents: who, why, how long. One line each in the log, and the last of them in memory.

Theory of operation: a ring of records that the host alone writes. `teal agent stat` and statistics() show it.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("teal.host.audit")

_KEPT = 256
_LONGEST = 400  # characters of what an agent says of itself


@dataclass(frozen=True, slots=True)
class AuditLine:
    """at: seconds since the epoch; what: online, fallback (its pools go on by themselves), returned (it was frozen, and
    decides again), gave up (it was frozen, and is replaced), restart, upgraded, changed, moved, stopped or refused;
    seconds: for how long what ended (fallback, stopped) had served, else 0."""

    at: float
    what: str
    pools: tuple[str, ...]
    policy: str
    pid: int
    why: str
    seconds: float
    more: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        lasted = f" after {self.seconds:.3g} s" if self.seconds else ""
        more = "".join(f" {name}={value}" for name, value in self.more.items())
        who = f"agent {self.policy} (process {self.pid}) of {', '.join(self.pools)}"
        return f"{who}: {self.what}{lasted}{': ' if self.why else ''}{self.why}{more}"


class Audit:
    """``note`` writes, ``lines`` reads. ``clock``: the wall clock, for tests another."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lines: deque[AuditLine] = deque(maxlen=_KEPT)
        self.total = 0

    def note(self, what: str, pools: tuple[str, ...], policy: str, pid: int, why: str = "", seconds: float = 0.0,
             *, bad: bool = False, **more: Any) -> AuditLine:  # fmt: skip
        """One line; ``bad``: something went wrong, and it is a warning in the log."""
        line = AuditLine(self._clock(), what, pools, policy, pid, printable(why), seconds, more)
        self._lines.append(line)
        self.total += 1
        log.log(logging.WARNING if bad else logging.INFO, "%s", line)
        return line

    def lines(self, pool: str | None = None) -> list[dict[str, Any]]:
        """The last of them, oldest first."""
        return [dataclasses.asdict(line) for line in self._lines if pool is None or pool in line.pools]


def printable(text: str) -> str:
    """One line of what an agent said: it must not be able to forge another, or to steer a terminal."""
    flat = " ".join(text.split())
    flat = "".join(c if c.isprintable() else "?" for c in flat)
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"
