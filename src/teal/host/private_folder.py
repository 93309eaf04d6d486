"""A folder that only its owner can read or change, for what this user's programs shall believe later.

Theory of operation: native code may come out of such a folder, so it counts only while nobody else can put anything
there: the folder is ours with mode 0700, and nobody but we and root can rename it away, which means that no folder
above it is writable by others (one with the sticky bit, such as /tmp, is: there they cannot touch what is ours). Files
are opened relative to the folder's descriptor, so that what was looked at is what is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path


class Unsafe(Exception):
    """The text says what is wrong with a folder, or a file in it."""


def open_private(path: Path) -> int:
    """A descriptor of the folder, which is made if it is not there. Raises Unsafe, OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    real = path.resolve(strict=True)
    fd = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.getuid():
            raise Unsafe(f"{real} belongs to user {status.st_uid}, not to {os.getuid()}")
        if status.st_mode & 0o077:
            raise Unsafe(f"{real} is open to others (mode {status.st_mode & 0o777:04o}): chmod 700 {real}")
        for above in real.parents:
            _check_above(above, above.stat())
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_above(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.getuid()):
        raise Unsafe(f"{path}, above it, belongs to user {status.st_uid}, neither to {os.getuid()} nor to root")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise Unsafe(f"{path}, above it, can be changed by others: chmod go-w {path}")


def check_file(fd: int) -> os.stat_result:
    """Of a file in such a folder: a regular one of ours, which others cannot change by another name. Raises Unsafe.

    One without a name is as good: another host has put a newer one in its place, or made room, since it was opened.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise Unsafe("it is not a regular file")
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or status.st_nlink > 1:
        raise Unsafe(f"user {status.st_uid}, mode {status.st_mode & 0o777:04o}, {status.st_nlink} names; expected a "
                     f"file of user {os.getuid()} alone, mode 0600, with one name")  # fmt: skip
    return status


def sweep(folder: int, suffix: str) -> None:
    """Takes away what was being written when its writer was killed: files with that suffix whose lock went with it."""
    for name in os.listdir(folder):
        if not name.endswith(suffix):
            continue
        with contextlib.suppress(OSError):
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=folder)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=folder)
            finally:
                os.close(file)
