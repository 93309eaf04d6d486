"""One snapshot as a file: an engine's optimised form of a model, on disk.

Layout, little-endian:

    0    8  "TEALSNAP"
    8    4  layout, 1
    12   4  bytes of the head
    16  32  SHA-256 of the head
    48      the head: JSON, what it was made for, the worker's key, name, size and SHA-256 of each part
    …       the parts, one behind the other; the file ends with the last one

Everything is checked when it is read, and the parts are hashed on the way into sealed memory: a file that was cut off,
overwritten or made for something else is Unfit. The hashes find damage. They say nothing about who wrote it: that is
the folder's business (private_folder.py).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from teal import _core
from teal.host.repository import SEALS
from teal.host.snapshot import MOST_PARTS, Part, Snapshot

LAYOUT = 1
_MAGIC = b"TEALSNAP"
_FIRST = struct.Struct("<8sII32s")
_MOST_HEAD = 1 << 20
_MOST_PART = 1 << 46
_CHUNK = 4 << 20


class Unfit(Exception):
    """A file that is not used; the text says why."""


class NoRoomError(Exception):
    """Not the file's fault: there is no memory to read it into."""


class _PartHead(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern="^[a-z_]{1,40}$")]
    nbytes: Annotated[int, Meta(ge=0, le=_MOST_PART)]
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    made_for: dict[str, str]
    key: str
    parts: Annotated[list[_PartHead], Meta(min_length=1, max_length=MOST_PARTS)]


def head_of(snapshot: Snapshot, made_for: dict[str, str]) -> bytes:
    """What its file begins with. Raises Unfit: it is too long."""
    parts = [_PartHead(part.name, part.nbytes, part.digest) for part in snapshot.parts]
    head = msgspec.json.encode(_Head(made_for, snapshot.key, parts))
    if len(head) > _MOST_HEAD:
        raise Unfit(f"a head of {len(head)} bytes, expected at most {_MOST_HEAD}")
    return _FIRST.pack(_MAGIC, LAYOUT, len(head), hashlib.sha256(head).digest()) + head


def write(fd: int, head: bytes, snapshot: Snapshot, go_on: Callable[[], bool]) -> None:
    """All of it, while ``go_on()``. Raises Unfit, OSError."""
    _write_all(fd, head)
    for part in snapshot.parts:
        digest = hashlib.sha256()
        at = 0
        while at < part.nbytes and (chunk := os.pread(part.fd, min(_CHUNK, part.nbytes - at), at)):
            if not go_on():
                raise Unfit("the host stops")
            digest.update(chunk)
            _write_all(fd, chunk)
            at += len(chunk)
        if digest.hexdigest() != part.digest:
            raise Unfit(f"its {part.name} is not what the worker made")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read(fd: int, made_for: dict[str, str]) -> Snapshot:
    """The snapshot in sealed memory of its own. Raises Unfit, NoRoomError, OSError."""
    size = os.fstat(fd).st_size
    head, at = _head(fd, size)
    if head.made_for != made_for:
        raise Unfit(_difference(head.made_for, made_for))
    if len({part.name for part in head.parts}) != len(head.parts):
        raise Unfit("it has two parts of one name")
    if size != at + (whole := sum(part.nbytes for part in head.parts)):
        raise Unfit(f"it has {size} bytes, expected {at + whole}: it was cut off")
    if whole > (available := _core.available_memory()):
        raise NoRoomError(f"{whole} bytes, and {available} of memory are available")
    parts: list[Part] = []
    try:
        for part in head.parts:
            parts.append(_sealed(fd, at, part))
            at += part.nbytes
    except BaseException:
        Snapshot("", tuple(parts)).close()
        raise
    return Snapshot(head.key, tuple(parts))


def _head(fd: int, size: int) -> tuple[_Head, int]:
    """It, and where the parts begin."""
    first = os.pread(fd, _FIRST.size, 0)
    if len(first) != _FIRST.size or not first.startswith(_MAGIC):
        raise Unfit("it is no snapshot, or was cut off")
    _, layout, length, digest = _FIRST.unpack(first)
    if layout != LAYOUT:
        raise Unfit(f"it has layout {layout}, expected {LAYOUT}")
    if length > _MOST_HEAD or _FIRST.size + length > size:
        raise Unfit(f"its head has {length} bytes, expected at most {_MOST_HEAD}, and no more than the file")
    text = os.pread(fd, length, _FIRST.size)
    if hashlib.sha256(text).digest() != digest:
        raise Unfit("its head is damaged")
    try:
        return msgspec.json.decode(text, type=_Head), _FIRST.size + length
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unfit(f"its head makes no sense: {error}") from None


def _difference(found: dict[str, str], wanted: dict[str, str]) -> str:
    for name, value in wanted.items():
        if found.get(name) != value:
            return f"it was made for {name} {found.get(name, 'that is not said')[:100]}, here is {value[:100]}"
    return f"it was made for {sorted(set(found) - set(wanted))} as well"


def _sealed(source: int, start: int, part: _PartHead) -> Part:
    """A part in memory that nobody can change any more."""
    fd = os.memfd_create(f"teal:{part.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _allocate(fd, part.nbytes)
        digest = hashlib.sha256()
        at = 0
        while at < part.nbytes:
            chunk = os.pread(source, min(_CHUNK, part.nbytes - at), start + at)
            if not chunk:
                raise Unfit("it was cut off while it was read")
            digest.update(chunk)
            os.pwrite(fd, chunk, at)
            at += len(chunk)
        if digest.hexdigest() != part.digest:
            raise Unfit(f"its {part.name} is damaged: SHA-256 {digest.hexdigest()[:16]}…, expected {part.digest[:16]}…")
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return Part(part.name, fd, part.digest, part.nbytes)


def _allocate(fd: int, nbytes: int) -> None:
    if nbytes == 0:
        return
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise NoRoomError(f"{nbytes} bytes: {error.strerror}") from None
        raise
