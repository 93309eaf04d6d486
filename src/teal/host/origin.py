"""Where a version comes from: a file that the client sent or the repository has, a function, or something built in.

Theory of operation: what a client asks for is checked here before anything is done for it, by the same rules whoever it
is; what only the host's owner may load (a function runs any code as the host's user) is refused here too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from teal import _core
from teal.errors import InvalidArgument
from teal.host import engines, wire
from teal.host import repository as files
from teal.kernel.builtin import builtin


@dataclass(slots=True)
class Origin:
    """Where a version comes from; ``fd`` is its file, ``weights`` the one beside it and ``sealed`` weights in memory of
    their own, all ours to close.
    """

    source: str
    kind: str
    fd: int | None = None
    version: int | None = None
    weights: int | None = None
    sealed: tuple[int, ...] = ()

    def close(self) -> None:
        for fd in (self.fd, self.weights, *self.sealed):
            if fd is not None:
                os.close(fd)


def check_load(load: wire.Load) -> None:
    """Numbers of a load. Raises InvalidArgument."""
    if load.version is not None and not 1 <= load.version < 1 << 31:
        raise InvalidArgument(f"{load.version}, expected 1 to 2^31 - 1", path="$.version")
    if load.threads is not None and not 1 <= load.threads <= 1024:
        raise InvalidArgument(f"{load.threads}, expected 1 to 1024", path="$.threads")
    if load.concurrency is not None and not 1 <= load.concurrency <= _core.MAX_WORKERS:
        raise InvalidArgument(f"{load.concurrency}, expected 1 to {_core.MAX_WORKERS}", path="$.concurrency")
    if load.idle_ns is not None and not 0 <= load.idle_ns <= 3600 * 10**9:
        raise InvalidArgument(f"{load.idle_ns} ns, expected 0 to one hour", path="$.idle")
    if not 0 < load.timeout <= 86_400:
        raise InvalidArgument(f"{load.timeout}, expected more than 0 and at most 86400 seconds", path="$.timeout")
    if not 0 <= load.sealed <= wire.MAX_SEALED:
        raise InvalidArgument(f"{load.sealed}, expected 0 to {wire.MAX_SEALED}", path="$.sealed")


def find_origin(
    load: wire.Load, datagram: wire.Datagram, *, owner: bool, repository: Path | None, model_bytes: int
) -> Origin:
    """Raises InvalidArgument, NotFound (no such builtin, nothing in the repository)."""
    if load.source is None:
        return _from_repository(load, repository, model_bytes)
    kind = load.kernel or files.kernel_kind(load.source)
    engines.check(load, kind)
    if kind == "builtin":
        name = load.source.removeprefix("builtin:")
        builtin(name)  # raises
        return Origin(name, kind, None, load.version)
    if kind == "function":
        if not owner:
            raise InvalidArgument(
                "a function kernel runs any code as the host's user, so only that user may load one; "
                "ask the host's owner to load it",
                path="$.source",
            )
        return Origin(load.source, kind, None, load.version)
    if kind not in files.FILE_KINDS.values():
        raise InvalidArgument(f"kernel kind {kind[:80]!r}, expected {engines.KINDS}", path="$.kernel")
    if repository is not None:
        return _inside(repository, files.inside(repository, load.source), kind, load.version, model_bytes)
    if not load.has_file:
        raise InvalidArgument("the model file's descriptor must come with the message", path="$.has_file")
    # Files beside the model (external data) are opened by the worker, with the owner's rights: for the owner only.
    source = load.source if owner else os.path.basename(load.source)
    origin = Origin(source, kind, datagram.take_fd(), load.version)
    try:
        origin.weights = datagram.take_fd() if load.has_weights else None
        origin.sealed = tuple(datagram.take_fd() for _ in range(load.sealed))
    except BaseException:
        origin.close()
        raise
    return origin


def _from_repository(load: wire.Load, repository: Path | None, model_bytes: int) -> Origin:
    if repository is None:
        raise InvalidArgument(
            "no source given, and this host has no model repository (teal serve --repository DIR)",
            path="$.source",
        )
    path, found = files.find(repository, load.name, load.version)
    number = load.version if load.version is not None else found
    kind = load.kernel or files.FILE_KINDS[path.suffix]
    engines.check(load, kind)
    return _inside(repository, path, kind, number, model_bytes)


def _inside(repository: Path, path: Path, kind: str, number: int | None, model_bytes: int) -> Origin:
    """A file of the repository, and the one beside it that its kind has."""
    if kind not in files.FILE_KINDS.values():
        raise InvalidArgument(f"kernel kind {kind[:80]!r}, expected {engines.KINDS}", path="$.kernel")
    origin = Origin(str(path), kind, files.open_file(path, model_bytes), number)
    beside = engines.weights_beside(str(path))
    try:
        if beside is not None and os.path.lexists(beside):
            origin.weights = files.open_file(files.inside(repository, beside), model_bytes)
    except BaseException:
        origin.close()
        raise
    return origin
