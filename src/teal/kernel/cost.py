"""What a call of a device model costs by each path, by batch; measured once a machine and kept.

Theory of operation. Batches fall into buckets, powers of two. `teal tune` measures whole calls, as a caller sees them,
and stores them for this machine, device and task; the weights do not matter, so that a model that was trained again
needs no new measurement. Without a file a worker measures a bucket when it first sees one, from inside: what a call
costs on its way to the worker is added, as only the resident kernel is called without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from teal.kernel.systems.task import Task

RING_US = 0.5  # a call through the ring and a worker that spins
_LAYOUT = 1
_RUNS = 5
_ENOUGH = 0.050  # seconds after which a way is measured well enough
_NOISE_US = 20.0  # below this a CPU is no better, only less disturbed
_WORSE = 1.5  # times the CPU's cost at which a device is not worth it any more


def bucket_of(batch: int) -> int:
    """The power of two that a batch counts as: the next one up."""
    return 1 << max(0, batch - 1).bit_length()


class Costs:
    """Microseconds by bucket and path."""

    def __init__(self, table: Mapping[int, Mapping[str, float]] | None = None) -> None:
        self.table: dict[int, dict[str, float]] = {bucket: dict(row) for bucket, row in (table or {}).items()}
        self.stored = bool(self.table)

    def best(self, batch: int) -> str | None:
        """The cheapest path; None where nothing was measured."""
        row = self._row(batch)
        return None if row is None else min(row, key=lambda path: row[path])

    def limit_us(self, batch: int) -> float:
        """What a call by a device may cost before the CPU is better."""
        row = self._row(batch) or {}
        return max(row.get("cpu", float("inf")), _NOISE_US) * _WORSE

    def _row(self, batch: int) -> dict[str, float] | None:
        bucket = bucket_of(batch)
        if bucket not in self.table and self.stored and bucket > max(self.table):
            bucket = max(self.table)  # measured until one path was clearly ahead
        return self.table.get(bucket)

    def measure(self, batch: int, ways: Mapping[str, Callable[[], object]]) -> str:
        """From inside a worker; returns the cheapest path."""
        row = {path: quickest_us(way) + (0.0 if path == "apk" else RING_US) for path, way in ways.items()}
        self.table[bucket_of(batch)] = row
        return min(row, key=lambda path: row[path])

    def breakeven(self, path: str) -> int | None:
        """The smallest batch from which on a device's path is not dearer than the CPU; None: it never is."""
        found: int | None = None
        for bucket in sorted(self.table, reverse=True):
            row = self.table[bucket]
            if path not in row or row[path] > row["cpu"]:
                break
            found = bucket
        return found


def quickest_us(way: Callable[[], object]) -> float:
    """Of a few runs; the first one warms up."""
    start = time.perf_counter()
    way()
    best = float("inf")
    for _ in range(_RUNS):
        begin = time.perf_counter()
        way()
        end = time.perf_counter()
        best = min(best, end - begin)
        if end - start > _ENOUGH:
            break
    return best * 1e6


# ---- what is kept ----------------------------------------------------------------------------------------------------


def folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "teal" / "tune"


def machine() -> str:
    """What of a machine the costs depend on: its processor and how many of its cores we may use."""
    name = platform.machine()
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        name = next(
            (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), name
        )
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def file_of(device: str, task: Task) -> Path:
    """Where the costs of a task on a device of this machine are kept."""
    key = "\0".join((machine(), device, task.load, task.source))
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def write(device: str, task: Task, costs: Costs) -> Path:
    """Raises OSError."""
    path = file_of(device, task)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = {"layout": _LAYOUT, "machine": machine(), "device": device, "load": task.load, "us": costs.table}
    fd, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    return path


def read(device: str, task: Task) -> Costs:
    """What was measured before; empty when nothing was, or the file makes no sense."""
    try:
        record = json.loads(file_of(device, task).read_text(encoding="utf-8"))
        if record["layout"] != _LAYOUT:
            return Costs()
        table = {int(bucket): {str(p): float(us) for p, us in row.items()} for bucket, row in record["us"].items()}
        if any("cpu" not in row or not set(row) <= {"cpu", "apk", "pl"} for row in table.values()):
            return Costs()
        return Costs(table)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Costs()
