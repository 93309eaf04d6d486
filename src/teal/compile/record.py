"""What the backend did, in numbers, and the one log line that each thing it did not do is worth.

Theory of operation: whatever does not run in a kernel says so here, with the operator and the reason: one line on
logger "teal.compile" and one count. The counts are this process's.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass

log = logging.getLogger("teal.compile")


@dataclass(frozen=True, slots=True)
class CompileStatistics:
    """Since the process started. Sizes in bytes."""

    graphs: int  # that torch gave to the backend
    resident: int  # sets of weights that are resident now, each with one graph
    loaded: int  # kernels that this process loaded
    shared: int  # kernels that were resident already, loaded by another process or for the same weights before
    changed: int  # times that weights were found changed, and loaded anew
    attached: int  # times that a host was lost, or left behind by fork(), and another one was attached to
    recompiled: int  # graphs of code that had one already, for other dtypes, ranks, sizes or settings
    dynamic: int  # graphs with symbolic extents
    sealed_bytes: int  # of weights, written into sealed memory by this process
    moved_bytes: int  # of parameters and buffers that now lie there
    left_bytes: int  # of those that stay where they are beside it, for others share their memory, or by move=False
    copies_in: int  # inputs that had to be packed by torch first; plain copies are in model.statistics()
    copies_out: int  # outputs that were copied, for their caller holds more than 8 results of one graph
    in_place: int  # inputs that were used where they are
    fallbacks: dict[str, int]  # graphs, or calls of them, that did not run in a kernel, by reason
    graph_breaks: dict[str, int]  # by reason


class Record:
    """The counts, while they grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.numbers: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.graph_breaks: Counter[str] = Counter()

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self.numbers[name] += by

    def fell_back(self, what: str, reason: str, instead: str) -> None:
        """``what``: the operator, or the part of the program. One log line."""
        with self._lock:
            self.fallbacks[f"{what}: {reason}"] += 1
        log.warning("%s: %s; %s", what, reason, instead)

    def broke(self, where: str, reason: str) -> None:
        """A graph ended before the function did. One log line."""
        with self._lock:
            self.graph_breaks[reason] += 1
        log.warning("graph break at %s: %s", where, reason)


record = Record()


def statistics() -> CompileStatistics:
    """What the backend did in this process so far, as one frozen record."""
    names = [name for name in CompileStatistics.__dataclass_fields__ if name not in ("fallbacks", "graph_breaks")]
    with record._lock:
        numbers = {name: record.numbers[name] for name in names}
        return CompileStatistics(**numbers, fallbacks=dict(record.fallbacks), graph_breaks=dict(record.graph_breaks))
