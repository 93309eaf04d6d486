"""How much memory a process holds, and which processes it started; read from /proc, absent figures are None."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | None = None) -> int | None:
    """Resident memory of a process (this one by default), shared pages included; None once it is gone."""
    try:
        return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def descendants(pid: int | None = None) -> set[int]:
    """Processes started by a process (this one by default), and by those; empty where the kernel does not tell."""
    found: set[int] = set()
    unread = [pid or os.getpid()]
    while unread:
        for listing in Path(f"/proc/{unread.pop()}/task").glob("*/children"):
            try:
                new = {int(child) for child in listing.read_text().split()} - found
            except (OSError, ValueError):
                continue
            found |= new
            unread += new
    return found
