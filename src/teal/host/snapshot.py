"""An optimised form that an engine made of a model's file, as the host keeps it.

Theory of operation: the first worker that loads a version hands it over in sealed memory files; the host checks the
seals and notes the SHA-256 of each part. From then on the parts go, with the file, to every other worker that loads the
version: the pool's others, and whoever replaces one; and to disk (cache.py). Its key says what it was made with
(engine, version, precision, threads, CPU); a worker that finds another key than its own does an ordinary load and says
so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from teal.errors import InvalidArgument
from teal.host import repository as files

if TYPE_CHECKING:
    from teal.host.cache import Entry

MOST_PARTS = 3  # with the file itself, what one message may carry


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a snapshot; ``fd`` is the snapshot's."""

    name: str
    fd: int
    digest: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    key: str
    parts: tuple[Part, ...]
    whole: bool = True  # made of the file alone: it suits whatever is loaded from the same bytes

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(part.fd for part in self.parts)

    @property
    def names(self) -> list[str]:
        return [part.name for part in self.parts]

    def copy(self) -> Snapshot:
        """The same with descriptors of its own."""
        parts = tuple(Part(p.name, os.dup(p.fd), p.digest, p.nbytes) for p in self.parts)
        return Snapshot(self.key, parts, self.whole)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@dataclass(slots=True, eq=False)
class Beginning:
    """What a load begins with. entry: under which its snapshot is kept on disk, if at all; proven: a worker has begun
    with it in this host's life; note: why one on disk was not used."""

    snapshot: Snapshot | None = None
    entry: Entry | None = None
    proven: bool = True
    note: str = ""


def kept(key: str, names: list[str], fds: list[int], *, whole: bool = True) -> Snapshot:
    """Takes descriptors over from a worker. They are closed when it raises InvalidArgument: one is not sealed."""
    try:
        fitting = len(names) == len(fds) and 0 < len(names) <= MOST_PARTS and len(set(names)) == len(names)
        if not fitting or not all(files.is_sealed(fd) for fd in fds):
            raise InvalidArgument(
                f"a snapshot of {len(names)} parts with {len(fds)} descriptors, expected 1 to {MOST_PARTS} sealed ones"
            )
        parts = [Part(name, fd, files.digest_of(fd), os.fstat(fd).st_size) for name, fd in zip(names, fds, strict=True)]
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return Snapshot(key, tuple(parts), whole)


def still_right(snapshot: Snapshot) -> bool:
    """Reads it anew, and closes it: are its bytes what came, and sealed?"""
    try:
        return all(files.is_sealed(part.fd) and files.digest_of(part.fd) == part.digest for part in snapshot.parts)
    finally:
        snapshot.close()
