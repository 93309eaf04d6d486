"""What is still on loan, and who took it.

Theory of operation: the core knows every live Tensor. With TEAL_TRACE_LOANS=1 in the environment it also asks, for each
new one, which line outside Teal takes it; that costs some microseconds a tensor, so it is not done otherwise. At exit
the list is then printed to stderr.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from dataclasses import dataclass

from teal import _core

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TRACING = os.environ.get("TEAL_TRACE_LOANS") == "1"


@dataclass(frozen=True, slots=True)
class Loan:
    """A tensor that keeps shared memory.

    shape, dtype, nbytes: of the tensor. views: arrays, buffers and capsules of it that are out. age_s, taken_by:
    seconds since it was taken, and the "file:line" that took it; None without TEAL_TRACE_LOANS=1.
    """

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    views: int
    age_s: float | None = None
    taken_by: str | None = None


def leaks() -> list[Loan]:
    """Every tensor of this process that has not been released or collected, the oldest first if they are traced."""
    now = time.monotonic_ns()
    found = sorted(_core.live_tensors(), key=lambda item: item[2])
    return [
        Loan(
            tensor.shape,
            tensor.dtype,
            tensor.nbytes,
            tensor.exports,
            (now - taken_ns) / 1e9 if taken_ns else None,
            taken_by or None,
        )
        for tensor, taken_by, taken_ns in found
    ]


def _caller() -> str:
    """The innermost line outside Teal."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _report() -> None:
    for loan in leaks():
        print(
            f"teal: still on loan: shape {loan.shape}, {loan.dtype}, {loan.nbytes} bytes, {loan.views} views, "
            f"{loan.age_s or 0:.1f} s, taken at {loan.taken_by} (docs/ownership.md)",
            file=sys.stderr,
        )


if _TRACING:
    _core.trace_loans(_caller)
    atexit.register(_report)
