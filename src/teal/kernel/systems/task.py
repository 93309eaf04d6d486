"""The device tasks of the systems loads: source, and the scratch a group of workers needs.

One source for OpenCL C and CUDA C++: a device puts a prelude before it that defines TEAL_TASK, TEAL_GLOBAL, TEAL_LOCAL
and TEAL_BARRIER() (and ``uchar`` and ``uint`` in CUDA), and a kernel that calls ``teal_task`` behind it. The weights
are the bytes of the model file from ``ModelFile.offset`` on, at a multiple of 8; ``in`` is ``x``, ``out0`` the scores,
``out1`` the verdict. ``workers`` is a power of two of at most 256, all in one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from teal.errors import InvalidArgument
from teal.kernel.systems import LOADS

MOST_WORKERS = 256

# file, what comes before it, bytes of scratch
_TASKS = {
    "linnos": ("linnos.cl", "#define LINNOS_MORE 0\n", 2 * 4 * 256 * 8),
    "linnos+1": ("linnos.cl", "#define LINNOS_MORE 1\n", 2 * 4 * 256 * 8),
    "linnos+2": ("linnos.cl", "#define LINNOS_MORE 2\n", 2 * 4 * 256 * 8),
    "mllb": ("mllb.cl", "", 0),
    "kml": ("kml.cl", "", 0),
    "kleio": ("kleio.cl", "", 4 * 2048 * 4),
}


@dataclass(frozen=True, slots=True)
class Task:
    """The source of ``teal_task`` for one load, and the bytes of scratch that its group shares (16-byte aligned)."""

    load: str
    source: str
    scratch: int


def task_of(load: str) -> Task:
    """Raises InvalidArgument for an unknown load."""
    if load not in _TASKS:
        raise InvalidArgument(f"load {load!r}, expected one of {sorted(LOADS)}", path="$.load")
    name, before, scratch = _TASKS[load]
    return Task(load, before + (Path(__file__).parent / name).read_text("utf-8"), scratch)
