"""What processes hold: descriptors, threads, children, shared memory; counted before and after a bad day.

Theory of operation: everything is read from /proc, by kind and not by number, so that two moments can be compared:
``socket`` twice and ``memfd:teal`` three times before must be the same after. What takes its time (a host hangs up, a
worker lets go) is waited for: ``settled`` looks again until the two are equal, and says what differs when they never
are. No test asserts how long that took; the bound only keeps a lost cause from hanging.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds until a test gives up waiting for what must come


@dataclass(frozen=True)
class Holdings:
    """Of one process. descriptors: how many of each kind. shared: bytes of Teal's memfds that it maps."""

    descriptors: tuple[tuple[str, int], ...]
    threads: int
    children: int
    shared: int


def children(pid: int) -> set[int]:
    """Direct children, zombies included."""
    found: set[int] = set()
    for task in _listed(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            found.update(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
    return found


def descriptors(pid: int) -> Counter[str]:
    """Kinds of open descriptors: socket, pipe, memfd:teal, anon_inode:[pidfd], or the path of a file."""
    kinds: Counter[str] = Counter()
    for fd in _listed(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
            kinds[re.sub(r":\[\d+\]|^/|\s*\(deleted\)", "", link)] += 1
    return kinds


def threads(pid: int) -> int:
    return len(_listed(f"/proc/{pid}/task"))


def shared(pid: int) -> int:
    """Bytes of Teal's memfds in its address space."""
    total = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if "/memfd:teal" in line:
                low, high = line.split(maxsplit=1)[0].split("-")
                total += int(high, 16) - int(low, 16)
    return total


def alive(pid: int) -> bool:
    """Is there such a process, and is it not a zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def state(pid: int) -> str:
    """R, S, D, T (stopped), Z; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def holdings(pid: int) -> Holdings:
    counts = tuple(sorted(descriptors(pid).items()))
    return Holdings(counts, threads(pid), len(children(pid)), shared(pid))


def until(truth: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Waits until ``truth()`` is true and returns it. Fails saying ``what`` never came."""
    end = time.monotonic() + patience
    while not (result := truth()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience:.0f} s in vain: {what}")
        time.sleep(0.01)
    return result


def settled(before: Any, take: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    """Waits until ``take()`` equals ``before``. Fails with both when it never does."""
    end = time.monotonic() + patience
    while (now := take()) != before:
        if time.monotonic() > end:
            raise AssertionError(f"{what} never came back to the start:\n before {before}\n after  {now}")
        time.sleep(0.02)


def steady(take: Callable[[], Any], samples: int = 8) -> Any:
    """What ``take()`` says once it has said the same ``samples`` times in a row: nothing is on its way any more."""
    seen, same = take(), 1
    end = time.monotonic() + PATIENCE
    while same < samples:
        if time.monotonic() > end:
            raise AssertionError(f"it never comes to rest: {seen}")
        time.sleep(0.03)
        now = take()
        same = same + 1 if now == seen else 1
        seen = now
    return seen


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
