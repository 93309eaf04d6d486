"""Who takes part in a contest, and what comes out of one."""

from __future__ import annotations

from dataclasses import dataclass, field

from teal.bench.lanes import Lane, Times
from teal.bench.rivals import zoo

SAME = 1e-3  # relative L2 between engines at float32
CLOSE = 0.3  # at lower precisions: a wrong answer differs by about 1; the error itself is measured apart


@dataclass(frozen=True)
class Entrant:
    """Who runs the model in which way. tolerance: of its answer, relative L2 to the first entrant's."""

    row: str
    lane: Lane
    variant: str
    note: str
    tolerance: float = SAME


@dataclass(frozen=True)
class Tuned:
    """What `teal tune` chose for a model, and how far its answers are from float32."""

    said: str
    error: float | None = None  # relative L2 over all inputs
    agreement: float | None = None  # top-1, where weights are real
    inputs: int = 0

    @property
    def words(self) -> str:
        if self.error is None:
            return f"{self.said}, error not measured"
        top = "" if self.agreement is None else f", top-1 {self.agreement:.1%}"
        return f"{self.said}, error {self.error:.1e} on {self.inputs} inputs{top}"


@dataclass
class Contest:
    """One model and batch: times by row, and what was said of the tuned model."""

    entry: zoo.Entry
    batch: int
    times: dict[str, Times] = field(default_factory=dict)
    tuned: Tuned | None = None

    @property
    def group(self) -> str:
        return f"{self.entry.title}, batch {self.batch}"
