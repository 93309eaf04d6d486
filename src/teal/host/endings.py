"""How requests end that have no answer: from the words in a completion line to the error that its caller gets."""

from __future__ import annotations

from teal.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    KernelFailed,
    NotFound,
    PeerDied,
    QuotaExceeded,
    TealError,
)
from teal.host.fate import how_detail_reads

DONE = 4
SPILLED = 10  # a reason: the outputs are in a region of their own

_CANCELLED, _EXPIRED = 6, 7
_INVALID, _NOT_FOUND, _QUOTA, _KERNEL, _WORKER_DIED = 1, 2, 3, 4, 5
_DEPENDENCY = 13
_CANCELLED_BY = {
    6: ("client", "cancel() was called"),
    7: ("host", "its client is gone"),
    9: ("host", "the host is stopping"),
    12: ("unload", "the version was unloaded by force"),
    13: ("dependency", "what it waited for (after=, or an input to come) did not end well"),
}


def error_of(
    state: int,
    reason: int,
    detail: int,
    message: str,
    *,
    model: str,
    version: int,
    limit: int,
    stage: str | None = None,
) -> TealError:
    """The error of a request of ``model`` (``version`` 0: the current one) by a client with ``limit`` bytes.

    ``stage``: the model of the request that it waited for in vain.
    """
    if state == _EXPIRED:
        return DeadlineExceeded(f"{model}: the deadline passed before the answer came")
    if state == _CANCELLED:
        source, why = _CANCELLED_BY.get(reason, ("host", f"reason {reason}"))
        if reason == _DEPENDENCY and stage is not None:
            why = f"{why}: stage {stage!r}, whose own future says why"
        return Cancelled(model, source=source, reason=why)
    if reason == _INVALID:
        return InvalidArgument(message or f"{model}: the request was malformed")
    if reason == _NOT_FOUND:
        number = f"version {version} of " if version else ""
        return NotFound(f"{number}model {model!r} is not loaded any more{': ' + message if message else ''}")
    if reason == _QUOTA:
        return QuotaExceeded(f"{model}: an output does not fit this client's quota of {limit} bytes (Limits.bytes)")
    if reason == _WORKER_DIED:
        return PeerDied("worker", f"{how_detail_reads(detail)} while it ran {model!r}")
    if reason == _KERNEL:
        return KernelFailed(message or "no message", model=model)
    return InternalError(f"{model}: request ended in state {state} for reason {reason}: {message}")
