"""The errors of Teal, one tree. docs/errors.md has a heading for each message.

TealError
├── InvalidArgument     something you gave breaks a rule; ``path`` says which part: ``$.inputs[0].shape[1]``
├── NotFound            no such model, version, file or host
├── QuotaExceeded       a limit of yours or of the machine; the message has the numbers
├── WouldBlock          only from ``*_nowait`` calls: it would have to wait
├── DeadlineExceeded    the deadline you set passed first; the answer, if there ever is one, is dropped
├── Cancelled           somebody ended the request: ``source`` (client, host, unload) and ``reason``
├── PeerDied            a process on the other side is gone: ``who`` (worker, host) and ``how`` (signal 11 SIGSEGV)
├── Closed              you closed, released or forked it
├── Busy                it is in use by you: wait, or use another one
├── KernelFailed        the kernel ran and reported an error; ``status`` is its own message
├── VersionMismatch     two builds of Teal that do not speak the same ABI
└── InternalError       our fault: please file a bug

You do *not* get a TealError for a keyword that there is not (TypeError) or for what your own function kernels raise in
your own process.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = [
    "Busy",
    "Cancelled",
    "Closed",
    "DeadlineExceeded",
    "InternalError",
    "InvalidArgument",
    "KernelFailed",
    "NotFound",
    "PeerDied",
    "QuotaExceeded",
    "TealError",
    "VersionMismatch",
    "WouldBlock",
]


class TealError(Exception):
    """Base of all of Teal's own errors. They can be pickled, since pools of processes send them home."""

    def __reduce__(self) -> tuple[Callable[..., TealError], tuple[type[TealError], str], dict[str, object]]:
        return _again, (type(self), str(self)), self.__dict__  # the message is made already


def _again(kind: type[TealError], message: str) -> TealError:
    error = kind.__new__(kind)
    error.args = (message,)
    return error


class InvalidArgument(TealError, ValueError):
    """Something you gave breaks a rule.

    ``path`` names the part, as in ``$.inputs[0].shape[1]``; it is ``None`` when the whole argument is meant.
    """

    def __init__(self, message: str, *, path: str | None = None) -> None:
        if path is None and message.startswith("$"):
            path, _, message = message.partition(": ")
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class NotFound(TealError, LookupError):
    """There is no such model, version, file or host."""


class QuotaExceeded(TealError):
    """A limit (yours, or the machine's) is reached. The message has the numbers."""


class WouldBlock(TealError):
    """The call would have to wait, and was asked not to."""


class DeadlineExceeded(TealError, TimeoutError):
    """The deadline passed before the answer came. The request does not run any more, or its result is dropped."""


class Cancelled(TealError):
    """The request was ended before it was done, by ``source`` for ``reason``."""

    def __init__(
        self, message: str = "cancelled", *, source: str = "client", reason: str = "cancel() was called"
    ) -> None:
        super().__init__(f"{message}: by {source}: {reason}")
        self.source = source
        self.reason = reason


class PeerDied(TealError, ConnectionError):
    """A process that was needed is gone. ``who``: worker or host. ``how``: the signal or exit status."""

    def __init__(self, who: str, how: str = "its process is gone") -> None:
        if ": " in who and how == "its process is gone":
            who, _, how = who.partition(": ")
        super().__init__(f"{who}: {how}")
        self.who = who
        self.how = how


class Closed(TealError):
    """You closed, released or forked what you are using."""


class Busy(TealError):
    """It is in use (by you): wait for it, or use another one."""


class KernelFailed(TealError):
    """The kernel ran and reported an error: ``status``."""

    def __init__(self, status: str, *, model: str | None = None) -> None:
        super().__init__(f"{model}: {status}" if model else status)
        self.status = status


class VersionMismatch(TealError):
    """Two builds of Teal that do not speak the same ABI. The message has both versions."""


class InternalError(TealError):
    """Our fault. Please file a bug with the message."""


_BY_NAME: dict[str, type[TealError]] = {
    cls.__name__: cls
    for cls in (
        InvalidArgument,
        NotFound,
        QuotaExceeded,
        WouldBlock,
        DeadlineExceeded,
        Cancelled,
        PeerDied,
        Closed,
        Busy,
        KernelFailed,
        VersionMismatch,
        InternalError,
    )
}


def from_core(name: str, message: str) -> TealError:
    """The error called ``name`` with a message that was made elsewhere (the core, or the host at the other end)."""
    return _BY_NAME.get(name, InternalError)(message)
