"""How much memory a duck may use, chosen from what is free.

Theory of operation: a *ladder* of budgets, largest first. A duck takes the first rung that fits into the memory that
can be had when it starts, less what is kept for programs. A budget is a limit and reserves nothing: memory is had when
a session is opened or a blob arrives, and given back afterwards. The lower rungs are those of a machine with 2 to 16
GiB, the upper ones hold the weights of a large model beside the buffers that work on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from teal.errors import QuotaExceeded

_MIB = 1 << 20
RESERVE = 512 * _MIB  # stays free for programs that are being loaded, and for everybody else


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes: of sessions (output buffers, arguments, program memory), of the program cache, of the data cache."""

    sessions: int
    programs: int
    data: int

    @property
    def whole(self) -> int:
        return self.sessions + self.programs + self.data


# MiB of (sessions, programs, data).
RUNGS = tuple(
    Budget(sessions * _MIB, programs * _MIB, data * _MIB)
    for sessions, programs, data in (
        (32768, 256, 32768),
        (16384, 256, 32768),
        (16384, 256, 16384),
        (8192, 256, 16384),
        (8192, 256, 8192),
        (4096, 256, 8192),
        (3072, 256, 4096),
        (2048, 256, 4096),
        (2048, 256, 2048),
        (1024, 256, 1024),
        (512, 256, 512),
        (512, 128, 256),
        (256, 64, 128),
        (128, 32, 64),
        (64, 16, 32),
    )
)


def choose(available: int, reserve: int = RESERVE) -> Budget:
    """The largest rung that leaves ``reserve`` of ``available`` bytes. Raises QuotaExceeded: not even the last fits."""
    for rung in RUNGS:
        if rung.whole + reserve <= available:
            return rung
    raise QuotaExceeded(
        f"{available} bytes of memory can be had, and a duck takes {RUNGS[-1].whole} beside {reserve} kept for "
        "programs; free some, or give --memory and --reserve"
    )
