"""What calls cost besides time: CPU seconds of every process that took part, and joules where the machine tells.

Theory of operation. CPU time comes from the scheduler's own nanosecond counts (/proc/PID/task/*/schedstat), summed over
a process and all its descendants: client, host and workers, or a rival with its server. Spinning counts like anything
else. Joules come from the packages' RAPL counters (powercap), which wrap, and which most virtual machines and ordinary
users cannot read: then there are none, and nothing is estimated in their place. They are the whole package's:
everybody's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class Effort:
    """cpu: seconds. joules: of all packages, None where they cannot be read."""

    cpu: float
    joules: float | None

    def __add__(self, other: Effort) -> Effort:
        both = self.joules is not None and other.joules is not None
        return Effort(self.cpu + other.cpu, (self.joules or 0.0) + (other.joules or 0.0) if both else None)


def descendants(pid: int) -> list[int]:
    """The process and everything it has started that is still there."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.extend(int(child) for child in children.read_text().split())
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time so far of all threads of these processes and their descendants; a thread that has ended is not in it."""
    total = 0
    for pid in {each for root in pids for each in descendants(root)}:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += int(path.read_text().split()[0])
    return total / 1e9


class Packages:
    """The RAPL counters of this machine's packages. `reason` says why there are none."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._domains: list[tuple[Path, int]] = []
        self.reason = "" if root.is_dir() else f"{root} is not there"
        for folder in sorted(root.glob("intel-rapl:*")) if root.is_dir() else []:
            if folder.name.count(":") != 1:  # parts of a package are in the package
                continue
            try:
                int((folder / "energy_uj").read_text())
                self._domains.append((folder / "energy_uj", int((folder / "max_energy_range_uj").read_text())))
            except (OSError, ValueError) as error:
                self.reason = f"{folder.name}: {error}"
        if not self._domains and not self.reason:
            self.reason = "no RAPL domain; usual in virtual machines"

    def read(self) -> list[int] | None:
        """Microjoules of each package, or None."""
        try:
            return [int(path.read_text()) for path, _ in self._domains] or None
        except (OSError, ValueError):
            return None

    def joules(self, before: list[int] | None, after: list[int] | None) -> float | None:
        """Between two readings; a counter that wrapped once in between is counted right."""
        if before is None or after is None:
            return None
        spent = (
            later - earlier if later >= earlier else later + limit - earlier
            for earlier, later, (_, limit) in zip(before, after, self._domains, strict=True)
        )
        return sum(spent) / 1e6


class Meter:
    """Measures effort between start() and stop()."""

    def __init__(self, packages: Packages | None = None) -> None:
        self.packages = packages or Packages()
        self._pids: tuple[int, ...] = ()
        self._cpu = 0.0
        self._energy: list[int] | None = None

    def start(self, pids: Iterable[int]) -> None:
        """pids: the roots of all trees that take part."""
        self._pids = tuple(pids)
        self._energy = self.packages.read()
        self._cpu = cpu_seconds(self._pids)

    def stop(self) -> Effort:
        cpu = cpu_seconds(self._pids) - self._cpu
        return Effort(max(0.0, cpu), self.packages.joules(self._energy, self.packages.read()))
