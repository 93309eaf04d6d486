"""What this machine can do at most for the GEMV of the bench: the same loop in plain threads, over several memories.

Theory of operation: limit.c has no duck, no sandbox and no Python in it, and the loop that gemv.c has (rows.h). Memory
is what it reads, so that what two cores win over one is what the machine's memory has left when one core reads it.
"""

from __future__ import annotations

import statistics
import subprocess
from dataclasses import dataclass

from teal.bench.lanes import LaneError

MEMORIES = {
    "memfd": "shared memory, as an input buffer",
    "anonymous": "memory of its own",
    "huge": "the same in pages of 2 MiB",
}
_PATIENCE_S = 120


@dataclass(frozen=True)
class Limit:
    """ns of each try, by one core and by two."""

    one: list[int]
    two: list[int]

    @property
    def speedup(self) -> float:
        return statistics.median(self.one) / statistics.median(self.two)


def measure(program: str, memory: str, nbytes: int, columns: int, tries: int, cores: tuple[int, int]) -> Limit:
    """One of ``MEMORIES``. Raises LaneError, with what the program said."""
    words = [program, memory, str(nbytes), str(columns), str(tries), *map(str, cores)]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaneError(f"{program}: {error}") from None
    lines = said.stdout.splitlines()
    if said.returncode != 0 or len(lines) != 2:
        raise LaneError(f"the plain loop over {memory} memory ended with status {said.returncode}")
    one, two = ([int(word) for word in line.split()] for line in lines)
    return Limit(one, two)
