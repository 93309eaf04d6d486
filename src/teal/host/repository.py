"""Where models come from: names, files and the repository folder.

Layout of a repository: ``<name>/model.onnx``, or ``<name>/<version number>/model.onnx`` (the highest number is
loaded); or model.xml (with model.bin), model.pt2 or model.safetensors instead. Nothing outside the folder is read for a
name, symbolic links included. A model of two files is sealed as one, its weights first, so that they begin on a page;
its digest is that of the two in this order.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from teal import _core
from teal.errors import InvalidArgument, NotFound, QuotaExceeded

# Kernels that are read from a file of this suffix, unless the load says another.
FILE_KINDS = {".onnx": "onnx", ".xml": "openvino", ".pt2": "torch", ".safetensors": "systems", ".elf": "elf"}
_CHUNK = 4 << 20
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: str) -> str:
    """Raises InvalidArgument unless the name can only be read one way (in paths, URLs and tables)."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        shown = name[:60] + "…" if isinstance(name, str) and len(name) > 60 else name
        raise InvalidArgument(
            f"model name {shown!r}: expected 1 to 128 letters, digits, '.', '_' or '-', "
            "starting with a letter or digit, without '..'",
            path="$.name",
        )
    return name


def kernel_kind(source: str) -> str:
    """What runs a source, by how it is written. Raises InvalidArgument."""
    if source.startswith("builtin:"):
        return "builtin"
    for suffix, kind in FILE_KINDS.items():
        if source.endswith(suffix):
            return kind
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", source):
        return "function"
    raise InvalidArgument(
        f"source {source[:200]!r}: expected a path ending in .onnx, .xml, .pt2, .safetensors or .elf, builtin:NAME or "
        "package.module:function",
        path="$.source",
    )


def open_file(path: str | os.PathLike[str], limit: int) -> int:
    """A descriptor of a regular file of at most ``limit`` bytes. Raises NotFound or InvalidArgument."""
    text = os.fspath(path)
    if "\0" in text or len(os.fsencode(text)) > 4095:
        raise InvalidArgument(f"path {text[:60]!r}…: expected at most 4095 bytes without NUL", path="$.source")
    try:
        fd = os.open(text, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise NotFound(f"{text}: {error.strerror}") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise InvalidArgument(f"{text}: not a regular file", path="$.source")
    if status.st_size > limit:
        os.close(fd)
        raise InvalidArgument(
            f"{text}: {status.st_size} bytes, expected at most {limit} (Limits.model_bytes)", path="$.source"
        )
    return fd


@dataclass(frozen=True, slots=True)
class Sealed:
    """A copy of a model file that nobody can change any more; ``fd`` is the caller's. No descriptor: no file."""

    fd: int | None
    digest: str  # SHA-256
    nbytes: int
    weights_bytes: int = 0  # in front: the file beside it
    digests: tuple[str, ...] = ()  # of the files one by one, the weights first
    regions: tuple[int, ...] = ()  # sealed memory with more weights; the caller's too

    @property
    def descriptors(self) -> tuple[int, ...]:
        return () if self.fd is None else (self.fd, *self.regions)

    def beside(self, region: Sealed) -> Sealed:
        """With one more region, and its bytes."""
        assert region.fd is not None
        return replace(self, nbytes=self.nbytes + region.nbytes, regions=(*self.regions, region.fd))

    def close(self) -> None:
        for fd in self.descriptors:
            os.close(fd)


def seal(fd: int, name: str, limit: int, weights: int | None = None) -> Sealed:
    """Copies what ``fd`` shows, behind what ``weights`` shows; what nobody can change is taken as it is.
    Whoever passed them may have lied about what they are, or change them while we read.

    Raises InvalidArgument for what is not a readable regular file of 1 to ``limit`` bytes, QuotaExceeded.
    """
    fds = (fd,) if weights is None else (weights, fd)
    sizes = [_size(each, name) for each in fds]
    size = sum(sizes)
    if sizes[-1] == 0:
        raise InvalidArgument(f"the file of {name!r} is empty", path="$.source")
    if size > limit:
        raise InvalidArgument(
            f"model file of {size} bytes, expected at most {limit} (Limits.model_bytes)", path="$.source"
        )
    if weights is None and _is_settled(fd):
        digest = digest_of(fd)
        return Sealed(os.dup(fd), digest, size, 0, (digest,))
    if size > (available := _core.available_memory()):
        raise QuotaExceeded(f"model file of {size} bytes: only {available} bytes of memory are available")
    sealed = os.memfd_create(f"teal:{name}"[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        digest, digests = _copy(fds, sizes, sealed)
        fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        os.close(sealed)
        raise InvalidArgument(f"reading the file of {name!r}: {error.strerror}", path="$.source") from None
    except BaseException:
        os.close(sealed)
        raise
    return Sealed(sealed, digest, size, 0 if weights is None else sizes[0], digests)


def _size(fd: int, name: str) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArgument(f"the descriptor of {name!r} is not a regular file", path="$.source")
    return status.st_size


def _copy(sources: tuple[int, ...], sizes: list[int], target: int) -> tuple[str, tuple[str, ...]]:
    """SHA-256 of all, and of each."""
    whole = sum(sizes)
    try:
        os.posix_fallocate(target, 0, whole)
    except OSError as error:
        raise QuotaExceeded(f"model file of {whole} bytes: no memory for it ({error.strerror})") from None
    together = hashlib.sha256()
    digests = []
    start = 0
    for source, size in zip(sources, sizes, strict=True):
        digest = hashlib.sha256() if len(sources) > 1 else together
        at = 0
        while at < size:
            chunk = os.pread(source, min(_CHUNK, size - at), at)
            if not chunk:
                raise InvalidArgument(f"the file shrank from {size} to {at} bytes while it was read", path="$.source")
            digest.update(chunk)
            if digest is not together:
                together.update(chunk)
            os.pwrite(target, chunk, start + at)
            at += len(chunk)
        start += size
        digests.append(digest)
    return together.hexdigest(), tuple(digest.hexdigest() for digest in digests)


def digest_of(fd: int) -> str:
    """SHA-256 of what a descriptor shows, read anew."""
    digest = hashlib.sha256()
    at = 0
    while chunk := os.pread(fd, _CHUNK, at):
        digest.update(chunk)
        at += len(chunk)
    return digest.hexdigest()


def is_sealed(fd: int) -> bool:
    """Can nobody change it any more, whoever holds it?"""
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS


def _is_settled(fd: int) -> bool:
    """Sealed memory with all of its pages: to read a hole could fail for want of memory, and later than now."""
    try:
        status = os.fstat(fd)
        return is_sealed(fd) and status.st_blocks * 512 >= status.st_size
    except OSError:  # a file of another kind has no seals
        return False


def check_digest(wanted: str, found: str, what: str, path: str = "$.digest") -> None:
    """Raises InvalidArgument unless they are the same SHA-256."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", wanted):
        raise InvalidArgument(f"{wanted[:80]!r}, expected a SHA-256: 64 hexadecimal digits", path=path)
    if wanted.lower() != found:
        raise InvalidArgument(
            f"{what}: its SHA-256 is {found}, expected {wanted.lower()}; it was changed or cut off: get it anew",
            path=path,
        )


def noted_digest(path: Path) -> str | None:
    """What stands in FILE.sha256 beside a file (as sha256sum writes it), if there is one. Raises InvalidArgument."""
    note = path.with_name(path.name + ".sha256")
    try:
        words = note.read_text("ascii", errors="replace")[:4096].split()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"{note}: {error.strerror}", path="$.source") from None
    if not words or not re.fullmatch(r"[0-9a-fA-F]{64}", words[0]):
        raise InvalidArgument(f"{note}: expected a SHA-256 in front, as sha256sum writes it", path="$.source")
    return words[0]


def inside(repository: Path, path: str) -> Path:
    """The real path, which must lie in the repository. Raises InvalidArgument."""
    if "\0" in path:
        raise InvalidArgument("path with a NUL byte", path="$.source")
    root = repository.resolve()
    try:
        real = (root / path).resolve()
        again = real.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise InvalidArgument(f"{path[:200]}: {error}", path="$.source") from None
    if not real.is_relative_to(root):
        raise InvalidArgument(f"{path}: leaves the model repository {root}", path="$.source")
    if real != again:  # behind a loop nothing is resolved any more, and `..` is taken for the folder before it
        raise InvalidArgument(
            f"{path[:200]}: goes through a loop of symbolic links; give a path without one", path="$.source"
        )
    return real


def find(repository: Path, name: str, version: int | None) -> tuple[Path, int | None]:
    """(file, version number) of a model in the repository. Raises NotFound or InvalidArgument."""
    check_name(name)
    folder = inside(repository, name)
    if not folder.is_dir():
        raise NotFound(f"model {name!r}: no folder of that name in {repository}")
    numbers = sorted(int(child.name) for child in folder.iterdir() if child.name.isdecimal() and child.is_dir())
    if version is None and (file := _model_file(repository, name)) is not None:
        return file, None
    if not numbers:
        raise NotFound(
            f"model {name!r}: neither {name}/model.onnx nor {name}/<number>/model.onnx in {repository} "
            "(nor model.xml, model.pt2 or model.safetensors)"
        )
    chosen = numbers[-1] if version is None else version
    file = _model_file(repository, f"{name}/{chosen}")
    if file is None:
        raise NotFound(f"model {name!r}: no version {chosen} in {repository}; there are {numbers}")
    return file, chosen


def _model_file(repository: Path, folder: str) -> Path | None:
    found = [path for suffix in FILE_KINDS if (path := inside(repository, f"{folder}/model{suffix}")).is_file()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise InvalidArgument(f"{folder}: has {names}, expected one model a folder", path="$.source")
    return found[0] if found else None
