"""How a process ended, in words and as the number that a completion line has room for."""

from __future__ import annotations

import signal

DEVICE_LOST = 71  # exit status of a worker whose device kernel does not answer (EX_OSERR)


def how_it_ended(status: int) -> tuple[str, int]:
    """Words and the number in a completion line, for a return code as subprocess gives it (negative: signal)."""
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = "unknown signal"
        return f"signal {-status} {name}", -status
    if status == DEVICE_LOST:
        return f"exit status {status}: its device kernel did not answer", 256 + status
    return f"exit status {status}", 256 + status


def how_detail_reads(detail: int) -> str:
    """The words for the number that bury_worker() left in a completion line."""
    return how_it_ended(detail - 256 if detail >= 256 else -detail)[0]
