"""A child of the host dies with it, whatever it is doing."""

from __future__ import annotations

import contextlib
import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_host() -> None:
    """Call it first thing in the child."""
    # The signal comes when the thread that started us ends: the host's loop, which outlives its children.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
