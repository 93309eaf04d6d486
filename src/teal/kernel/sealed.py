"""The sealed file of a kernel, and the memory of slots, as engines take them.

Theory of operation: a file is mapped privately and writable: what nobody writes is the very memory of the sealed file,
one copy for all workers; an engine that writes to its weights gets pages of its own. Engines that refuse read-only
arrays are given slots by address: an input of a slot is read-only to Python, not to the worker.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from teal._core import Tensor
from teal.errors import InvalidArgument
from teal.kernel.protocol import Snapshot, Source

SMALLEST = 1 << 20  # bytes of a file whose optimised form is worth keeping
_LONGEST = 600  # characters of an engine's own words in an error


def mapped(source: Source, what: str) -> mmap.mmap:
    """The file, in one piece. ``what``: a word for what it should be. Raises InvalidArgument without one."""
    if source.fd is None:
        raise InvalidArgument(f"{what} needs its file", path="$.source")
    size = os.fstat(source.fd).st_size
    if size == 0:
        raise InvalidArgument(f"{source.shown}: the file is empty, expected {what}")
    return mapped_privately(source.fd)


def mapped_privately(fd: int) -> mmap.mmap:
    """All of a file."""
    return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def memory_of(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a slot's tensor, writable."""
    if tensor.nbytes == 0:
        return np.empty(0, np.uint8)
    held = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.address)
    held.owner = tensor  # type: ignore[attr-defined]
    return np.ctypeslib.as_array(held)


def one_line(error: BaseException) -> str:
    """An engine's own words, in one line of bearable length."""
    return " ".join(str(error).split())[:_LONGEST]


def snapshot_key(engine: str, source: Source) -> str:
    """What an optimised form depends on besides its file."""
    options = ",".join(f"{name}={value}" for name, value in sorted(source.options.items()))
    return (
        f"{engine} {processor()} {source.device or 'CPU'} threads={source.cores} {source.precision or 'fp32'} {options}"
    ).rstrip()


def usable(engine: str, source: Source) -> tuple[Snapshot | None, str]:
    """The snapshot that comes with a load, and why it is not used if it is not."""
    snapshot = source.snapshot
    if snapshot is None or snapshot.key == snapshot_key(engine, source):
        return snapshot, ""
    return None, f"its snapshot was made with {snapshot.key[:200]}: loaded from the file"


def memory_file(name: str) -> int:
    """An empty memory file that can be sealed."""
    return os.memfd_create(f"teal:{name}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def write(fd: int, data: bytes | memoryview) -> None:
    """All of it, from the start. Raises OSError."""
    view = memoryview(data).cast("B")
    at = 0
    while at < len(view):
        at += os.pwrite(fd, view[at : at + (1 << 30)], at)


def seal(fd: int) -> int:
    """Nobody can change it from here on. Returns it."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    return fd


def contents(fd: int) -> mmap.mmap:
    """A memory file, mapped as ``mapped`` does it."""
    return mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def processor() -> str:
    """What of the CPU an optimised form depends on, as a short text."""
    about = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "flags", "Features", "CPU part")):
                about += line
            elif not line.strip():
                break
    except OSError:
        about = platform.processor()
    return f"{platform.machine()}-{sha256(about.encode()).hexdigest()[:12]}"
