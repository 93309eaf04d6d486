"""Looking at processes from the outside: who is alive, who is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def state(pid: int) -> str | None:
    """The state letter of a process, None where it is gone or only waits to be reaped."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if letter in "ZX" else letter


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(pid))
    return found


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    """Whether the condition comes true; looks again and again, up to a bound that only a failure reaches."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
