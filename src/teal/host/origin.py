"""Where a version comes from: a file that the client sent or the repository has, a function, or something built in.

Theory of operation: what a client asks for is checked here before anything is done for it, by the same rules whoever it
is; what only the host's owner may load (a function runs any code as the host's user) is refused here too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from teal.errors import InvalidArgument, NotFound
from teal.host import repository as files
from teal.host import wire
from teal.kernel.builtin import BUILTINS

_EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"


@dataclass(slots=True)
class Origin:
    """Where a version comes from; ``fd`` is its file, ``sealed`` weights in memory of their own, all ours to close."""

    source: str
    kind: str
    fd: int | None = None
    version: int | None = None
    sealed: tuple[int, ...] = ()

    def close_descriptors(self) -> None:
        for fd in (*(() if self.fd is None else (self.fd,)), *self.sealed):
            os.close(fd)


def check_load(load: wire.Load) -> None:
    """Numbers and options of a load. Raises InvalidArgument."""
    if load.version is not None and not 1 <= load.version < 1 << 31:
        raise InvalidArgument(f"{load.version}, expected 1 to 2^31 - 1", path="$.version")
    if load.threads is not None and not 1 <= load.threads <= 1024:
        raise InvalidArgument(f"{load.threads}, expected 1 to 1024", path="$.threads")
    if load.idle_ns is not None and not 0 <= load.idle_ns <= 3600 * 10**9:
        raise InvalidArgument(f"{load.idle_ns} ns, expected 0 to one hour", path="$.idle")
    if not 0 < load.timeout <= 86_400:
        raise InvalidArgument(f"{load.timeout}, expected more than 0 and at most 86400 seconds", path="$.timeout")
    if _EXTERNAL_DATA in load.options:
        raise InvalidArgument(f"{_EXTERNAL_DATA}: is the model's own folder", path="$.options")


def check_kind(load: wire.Load, kind: str) -> None:
    """What a kernel of this kind takes. Raises InvalidArgument."""
    if kind == "systems" and (load.options or load.threads not in (None, 1)):
        raise InvalidArgument(
            "a systems load has no options and runs in one thread; leave options= and threads= out",
            path="$.options",
        )
    if load.sealed and kind != "torch":
        raise InvalidArgument(
            f"{load.sealed} sealed regions for a kernel of kind {kind}, expected kernel='torch', which alone takes its "
            "weights so",
            path="$.sealed",
        )
    if not 0 <= load.sealed <= wire.MAX_SEALED:
        raise InvalidArgument(f"{load.sealed}, expected 0 to {wire.MAX_SEALED}", path="$.sealed")


def find_origin(
    load: wire.Load, datagram: wire.Datagram, *, owner: bool, repository: Path | None, model_bytes: int
) -> Origin:
    """Raises InvalidArgument, NotFound."""
    if load.source is None:
        return _from_repository(load, repository, model_bytes)
    kind = load.kernel or files.kernel_kind(load.source)
    _check_device(load, kind)
    if kind == "builtin":
        name = load.source.removeprefix("builtin:")
        if name not in BUILTINS:
            raise NotFound(f"builtin kernel {name[:80]!r}; there are {sorted(BUILTINS)}")
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
        raise InvalidArgument(
            f"kernel kind {kind[:80]!r}, expected onnx, torch, systems, function or builtin", path="$.kernel"
        )
    if repository is not None:
        path = files.inside(repository, load.source)
        return Origin(str(path), kind, files.open_file(path, model_bytes), load.version)
    if not load.has_file:
        raise InvalidArgument("the model file's descriptor must come with the message", path="$.has_file")
    # Files beside the model (external data) are opened by the worker, with the owner's rights: for the owner only.
    source = load.source if owner else os.path.basename(load.source)
    fd, count = datagram.take_fd(), min(max(load.sealed, 0), len(datagram.fds))
    return Origin(source, kind, fd, load.version, tuple(datagram.take_fd() for _ in range(count)))


def _from_repository(load: wire.Load, repository: Path | None, model_bytes: int) -> Origin:
    _check_device(load, "onnx")
    if repository is None:
        raise InvalidArgument(
            "no source given, and this host has no model repository (teal serve --repository DIR)",
            path="$.source",
        )
    path, found = files.find(repository, load.name, load.version)
    number = load.version if load.version is not None else found
    kind = files.FILE_KINDS[path.suffix]
    return Origin(str(path), kind, files.open_file(path, model_bytes), number)


def _check_device(load: wire.Load, kind: str) -> None:
    """Raises InvalidArgument."""
    if load.path not in (None, "cpu", "apk", "pl", "auto"):
        raise InvalidArgument(f"{load.path[:80]!r}, expected cpu, apk, pl or auto", path="$.path")
    if load.device is None and load.path is not None:
        raise InvalidArgument(f"path {load.path!r} without a device; give device= too", path="$.path")
    if load.device is not None and kind != "systems":
        raise InvalidArgument(
            f"device {load.device[:80]!r} for a kernel of kind {kind}, expected a systems load (.safetensors)",
            path="$.device",
        )
