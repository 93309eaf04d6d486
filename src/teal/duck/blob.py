"""A blob: bytes in sealed memory, known by their SHA-256.

Theory of operation: whatever a duck keeps (programs, input buffers) is copied once into a memfd, hashed on the way, and
sealed: from then on its digest is its name, and nobody can change what was hashed. Who uses a blob holds it; the memory
goes with the last one who does, after `kill -9` too.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from teal import _core
from teal.duck.proof import Proof
from teal.errors import InvalidArgument, QuotaExceeded
from teal.host.repository import SEALS

_CHUNK = 4 << 20
MOST_BYTES = 1 << 40
PAGE = 4096


@dataclass(slots=True, eq=False)
class Blob:
    """Sealed memory: a file of exactly ``nbytes``."""

    digest: str
    nbytes: int
    fd: int
    users: int = 0  # sessions that have it mapped, and whoever is reading it
    proof: Proof | None = None  # not None: nobody knows yet whether that is its digest
    _open: bool = field(default=True, repr=False)

    @property
    def held(self) -> int:
        """Bytes of memory: whole pages."""
        return pages(self.nbytes)

    @contextmanager
    def view(self) -> Iterator[mmap.mmap | bytes]:
        """Its bytes, mapped for reading."""
        if self.nbytes == 0:
            yield b""
            return
        with mmap.mmap(self.fd, self.nbytes, mmap.MAP_SHARED, mmap.PROT_READ) as data:
            yield data

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self.fd)


def pages(nbytes: int) -> int:
    """Rounded up to whole pages."""
    return (nbytes + PAGE - 1) // PAGE * PAGE


def check_digest(digest: str, path: str = "$.digest") -> str:
    """Raises InvalidArgument unless it is a SHA-256 in lower-case hexadecimal."""
    if len(digest) != 64 or any(c not in "0123456789abcdef" for c in digest):
        raise InvalidArgument(f"{digest[:80]!r}, expected a SHA-256 of 64 hexadecimal digits", path=path)
    return digest


def empty(nbytes: int) -> int:
    """A memfd of so many bytes that can be sealed; its pages are had now. Raises QuotaExceeded, InvalidArgument."""
    if not 0 <= nbytes <= MOST_BYTES:
        raise InvalidArgument(f"{nbytes} bytes, expected 0 to {MOST_BYTES}", path="$.nbytes")
    if nbytes > (available := _core.available_memory()):  # reserving more would take it from everybody first
        raise QuotaExceeded(f"{nbytes} bytes of memory cannot be had ({available} are available); free some")
    fd = os.memfd_create("teal:blob", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        if nbytes:
            os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise QuotaExceeded(f"{nbytes} bytes of memory cannot be had ({error.strerror}); free some") from None
        raise
    return fd


def seal(fd: int) -> None:
    """Nobody changes it any more."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)


def from_file(source: int, nbytes: int | None = None, go_on: Callable[[], bool] = lambda: True) -> Blob:
    """A blob of a file's first ``nbytes`` (all of them). Raises InvalidArgument, QuotaExceeded, OSError.

    ``go_on`` is asked between chunks: False, and the copy is given up (Closed is the caller's to say).
    """
    there = os.fstat(source).st_size
    size = there if nbytes is None else nbytes
    if size > there:
        raise InvalidArgument(f"the file was cut off at byte {there} of {size} while it was read")
    fd = empty(size)
    try:
        digest = hashlib.sha256()
        at = 0
        while at < size:
            chunk = os.pread(source, min(_CHUNK, size - at), at)
            if not chunk or not go_on():
                raise InvalidArgument(f"the file was cut off at byte {at} of {size} while it was read")
            digest.update(chunk)
            os.pwrite(fd, chunk, at)
            at += len(chunk)
        seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return Blob(digest.hexdigest(), size, fd)


def from_bytes(data: bytes | bytearray | memoryview) -> Blob:
    """The same of bytes in memory."""
    view = memoryview(data).cast("B")
    fd = empty(view.nbytes)
    try:
        at = 0
        while at < view.nbytes:
            at += os.pwrite(fd, view[at : at + (1 << 30)], at)
        seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return Blob(hashlib.sha256(view).hexdigest(), view.nbytes, fd)
