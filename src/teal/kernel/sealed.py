"""The sealed file of a kernel, and the memory of slots, as engines take them.

Theory of operation: a file is mapped privately and writable: what nobody writes is the very memory of the sealed file,
one copy for all workers; an engine that writes to its weights gets pages of its own. Engines that refuse read-only
arrays are given slots by address: an input of a slot is read-only to Python, not to the worker.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from teal._core import Tensor
from teal.errors import InvalidArgument
from teal.kernel.protocol import Source

_LONGEST = 600  # characters of an engine's own words in an error


def mapped(source: Source, what: str) -> mmap.mmap:
    """The file, in one piece. ``what``: a word for what it should be. Raises InvalidArgument without one."""
    if source.fd is None:
        raise InvalidArgument(f"{what} needs its file", path="$.source")
    size = os.fstat(source.fd).st_size
    if size == 0:
        raise InvalidArgument(f"{source.shown}: the file is empty, expected {what}")
    return mmap.mmap(source.fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


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
