"""A folder of temporary files that goes with its process, also with one that is killed.

Theory of operation: its owner holds a lock on it, which the system lets go of when the process ends, whatever ends it.
Whoever makes the next one with the same prefix takes away the folders that nobody holds. (Not by process number:
another container may share the folder for temporary files, and has processes of its own.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class PassingFolder:
    """Empty, new and this user's alone. ``close()``, or the end of the process, takes it away."""

    def __init__(self, prefix: str) -> None:
        self._owner = os.getpid()
        _sweep(prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            self._fd = _locked(self.path)
            if self._fd >= 0:
                return

    def close(self) -> None:
        if os.getpid() != self._owner:  # a forked child, which has it by accident
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _locked(path: Path) -> int:
    """A descriptor of the folder that holds its lock; -1: somebody has it, or it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink > 0:
            return fd
    os.close(fd)
    return -1


def _sweep(prefix: str) -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.getuid():
                continue
            fd = _locked(path)
            if fd >= 0:
                shutil.rmtree(path, ignore_errors=True)
                os.close(fd)
