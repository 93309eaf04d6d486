"""Blobs on disk: what crossed the wire once is there after a restart.

Theory of operation: a blob is a file named after its SHA-256, in a folder that is this user's alone
(host/private_folder.py). It appears by rename when it is complete, and is hashed again each time it is read: a file
that was damaged is removed, and that is said. Files used least recently go when there are too many bytes; any number of
ducks may share a folder. Nothing here fails a request: without a folder there is no shelf, and ``note`` says why.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import threading
from pathlib import Path

from teal.duck.blob import Blob, from_file
from teal.errors import QuotaExceeded, TealError
from teal.host.private_folder import Unsafe, check_file, open_private, sweep

log = logging.getLogger("teal.duck")

MOST_BYTES = 32 << 30
_PARTIAL = ".partial"
_FREE = 0.05  # of the file system stays free
_CHUNK = 4 << 20


class Shelf:
    """``folder``: None, and nothing is kept. Thread-safe."""

    def __init__(self, folder: Path | None, most_bytes: int = MOST_BYTES, *, wanted: bool = True) -> None:
        self._guard = threading.Lock()  # one thread makes room and writes at a time
        self._most_bytes = most_bytes
        self._fd: int | None = None
        self.path = folder
        self.note = ""
        self.hits = self.stored = self.refused = self.evicted = 0
        if not wanted:
            return
        if folder is None:
            self._give_up("there is no home directory; set XDG_CACHE_HOME, or give --cache DIR")
            return
        try:
            self._fd = open_private(folder)
        except (Unsafe, OSError) as error:
            self._give_up(str(error) if isinstance(error, Unsafe) else f"{folder}: {error.strerror}")
            return
        sweep(self._fd, _PARTIAL)

    def _give_up(self, why: str) -> None:
        self.note = f"programs and data are kept in memory only: {why}"
        self.path = None
        log.warning("%s", self.note)

    def find(self, digest: str) -> Blob | None:
        """In sealed memory, with the digest that it has on disk, or None."""
        if self._fd is None:
            return None
        try:
            file = os.open(digest, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=self._fd)
        except OSError:
            return None
        try:
            status = check_file(file)
            blob = from_file(file, status.st_size)
            if blob.digest != digest:
                blob.close()
                self._remove(digest, f"it is damaged: its SHA-256 is {blob.digest[:16]}…")
                return None
            with contextlib.suppress(OSError):
                os.utime(file)  # used now
            self.hits += 1
            return blob
        except QuotaExceeded as error:
            log.warning("blob %s on disk is not used: %s", digest[:16], error)
        except (Unsafe, OSError, TealError) as error:
            self._remove(digest, str(error))
        finally:
            os.close(file)
        return None

    def has(self, digest: str) -> bool:
        """Is there such a file? (It is looked at when it is read.)"""
        if self._fd is None:
            return False
        try:
            os.stat(digest, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def store(self, blob: Blob) -> bool:
        """Writes it, unless it is there or there is no room."""
        with self._guard:
            if self._fd is None or self.has(blob.digest):
                return False
            try:
                if not self._make_room(self._fd, blob.nbytes):
                    return False
                self._write(self._fd, blob)
            except OSError as error:
                log.warning("blob %s is not kept on disk: %s", blob.digest[:16], error.strerror)
                return False
        self.stored += 1
        return True

    def forget(self, digest: str | None = None) -> int:
        """Removes a blob, or all. Returns how many."""
        with self._guard:
            if self._fd is None:
                return 0
            names = [name for name, _ in _kept(self._fd)] if digest is None else [digest]
            removed = 0
            for name in names:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._fd)
                    removed += 1
            return removed

    def numbers(self) -> tuple[int, int]:
        """(files, bytes)"""
        with self._guard:
            sizes = [] if self._fd is None else [status.st_size for _, status in _kept(self._fd)]
        return len(sizes), sum(sizes)

    def close(self) -> None:
        with self._guard:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    # ---- files -------------------------------------------------------------------------------------------------------

    def _remove(self, digest: str, why: str) -> None:
        self.refused += 1
        log.warning("blob %s on disk is removed: %s", digest[:16], why)
        with contextlib.suppress(OSError):
            os.unlink(digest, dir_fd=self._fd)

    def _write(self, folder: int, blob: Blob) -> None:
        partial = f"{blob.digest[:32]}.{secrets.token_hex(8)}{_PARTIAL}"
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it has an owner who lives
            os.fchmod(file, 0o600)
            at = 0
            while at < blob.nbytes:
                at += os.write(file, os.pread(blob.fd, min(_CHUNK, blob.nbytes - at), at))
            os.rename(partial, blob.digest, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise
        finally:
            os.close(file)

    def _make_room(self, folder: int, need: int) -> bool:
        if need > self._most_bytes:
            return False
        held = sorted(_kept(folder), key=lambda file: file[1].st_mtime_ns, reverse=True)
        room = self._most_bytes - need - sum(status.st_size for _, status in held)
        while room < 0 and held:
            name, status = held.pop()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            room += status.st_size
            self.evicted += 1
        disk = os.fstatvfs(folder)
        return (disk.f_bavail - _FREE * disk.f_blocks) * disk.f_frsize >= need


def _kept(folder: int) -> list[tuple[str, os.stat_result]]:
    found = []
    for name in os.listdir(folder):
        if len(name) == 64:
            with contextlib.suppress(FileNotFoundError):  # another duck took it away
                found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
    return found
