"""What tuning found for one model file on one machine, and where that is kept.

A record is JSON beside the model (MODEL.onnx.tuned.json), or where that folder cannot be written, in
`$XDG_STATE_HOME/teal/tune/models`. It names the SHA-256 of the model, the machine (processor, its features, cores), the
versions of Teal and of the engine; whatever of these is different now, the record is not used, and that is said. If
the winner is an int8 form of the model, its file lies beside the record and the record has its SHA-256.

Everything in a record is checked when it is read, since the file may be from anybody: it must belong to this user, to
root or to the owner of the model, others must not be able to write it, and it can choose among engines, precisions and
threads, and name a file in its own folder. It cannot name options or places.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import stat
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from teal._version import __version__
from teal.host.engines import PACKAGES

LAYOUT = 1
SUFFIX = ".tuned.json"
KERNELS = PACKAGES
PRECISIONS = ("fp32", "bf16", "int8")
COMPILED = {"compile": "1"}  # the only option that a record may ask for, of the kernel torch
_MOST_BYTES = 1 << 20
_MOST_THREADS = 4096
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")


@dataclass(frozen=True)
class Record:
    """digest: of the model file; file, file_digest: of its int8 form; error: relative L2 against float32; agreement:
    top-1; inputs: how many were compared, of which kind ("given", "random"); us: median of a call by batch."""

    digest: str
    machine: str
    teal: str
    engine: str
    kernel: str
    precision: str
    threads: int
    compiled: bool = False
    file: str | None = None
    file_digest: str | None = None
    error: float = 0.0
    agreement: float | None = None
    inputs: int = 0
    kind: str = "random"
    us: dict[int, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """As people read it: "openvino bf16, 2 threads"."""
        how = f"{self.kernel} {self.precision}{' compiled' if self.compiled else ''}"
        return f"{how}, {self.threads} thread{'' if self.threads == 1 else 's'}"


class Unusable(Exception):
    """A record that cannot be used; the text says why."""


def machine() -> str:
    """The processor, a short hash of its features, and how many cores we may use."""
    name, features = platform.machine(), ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name":
                name = value
            elif key in ("flags", "Features"):
                features = " ".join(sorted(value.split()))
            elif not key:
                break  # the next core is like the first
    return f"{name}, features {hashlib.sha256(features.encode()).hexdigest()[:8]}, {len(os.sched_getaffinity(0))} cores"


def engine(kernel: str) -> str:
    """Name and version of what runs a kernel here. Raises Unusable where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    package = KERNELS[kernel]
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        raise Unusable(f"{package} is not installed any more") from None


def digest_of(path: Path) -> str:
    """SHA-256. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def beside(model: Path) -> Path:
    return model.with_name(model.name + SUFFIX)


def folder() -> Path:
    """Where records of models lie whose own folder cannot be written."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "teal" / "tune" / "models"


def in_folder(digest: str) -> Path:
    """A file for each model and machine."""
    return folder() / f"{digest[:24]}-{hashlib.sha256(machine().encode()).hexdigest()[:8]}.json"


# ---- writing ---------------------------------------------------------------------------------------------------------


def place_for(model: Path, digest: str) -> Path:
    """Where a record of this model is to be written: beside it where that can be done. Raises OSError."""
    if os.access(model.parent, os.W_OK):
        return beside(model)
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    return in_folder(digest)


def write(record: Record, path: Path) -> None:
    """All of it or nothing. Raises OSError."""
    fd, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump({"layout": LAYOUT, **asdict(record)}, file, indent=1)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(path: Path, owner: int) -> Record:
    """A record that makes sense; owner: user of the model file. Raises Unusable, FileNotFoundError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unusable(f"{path} cannot be read ({error.strerror})") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            raise Unusable(f"{path} is no record: not a regular file of at most {_MOST_BYTES} bytes")
        if status.st_uid not in (0, os.getuid(), owner) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unusable(f"{path} belongs to somebody else, or others can write it")
        data = os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)
    try:
        return parsed(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unusable(f"{path} is damaged or of another version") from None


def parsed(told: dict[str, Any]) -> Record:
    """Raises ValueError, KeyError, TypeError."""
    if told.pop("layout") != LAYOUT:
        raise ValueError("layout")
    told["us"] = {int(batch): float(us) for batch, us in told["us"].items()}
    record = Record(**told)
    texts = (record.digest, record.machine, record.teal, record.engine, record.kind)
    sound = (
        all(isinstance(text, str) and len(text) < 1000 for text in texts)
        and _SHA256.fullmatch(record.digest)
        and record.kernel in KERNELS
        and record.precision in PRECISIONS
        and type(record.threads) is int
        and 1 <= record.threads <= _MOST_THREADS
        and type(record.compiled) is bool
        and isinstance(record.error, (int, float))
        and (record.agreement is None or isinstance(record.agreement, (int, float)))
        and (record.file is None) == (record.file_digest is None)
        and (record.precision == "int8") == (record.file is not None)
        and (record.file is None or (_NAME.fullmatch(record.file) and _SHA256.fullmatch(record.file_digest or "")))
    )
    if not sound:
        raise ValueError("values")
    return record


def check(record: Record, digest: str) -> None:
    """Does it fit this model, machine and software? Raises Unusable saying what is different."""
    if record.digest != digest:
        raise Unusable("it is of another file than this one")
    if record.machine != machine():
        raise Unusable(f"it is of another machine ({record.machine})")
    if record.teal != __version__:
        raise Unusable(f"it is of Teal {record.teal}, this is {__version__}")
    if record.engine != (here := engine(record.kernel)):
        raise Unusable(f"it is of {record.engine}, here is {here}")


def found(model: Path) -> tuple[Record, Path] | None:
    """The record of a model file that suits here, and its path; None where there is none at all.

    The file beside the model goes before the one in the user's folder. A model that cannot be read has none: whoever
    loads it says why. Raises Unusable for a record that does not suit.
    """
    try:
        status = model.stat()
        mine = beside(model)
        if not stat.S_ISREG(status.st_mode) or not (os.path.lexists(mine) or any(folder().glob("*.json"))):
            return None
        digest = digest_of(model)
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return None
    why: Unusable | None = None
    for path in (mine, in_folder(digest)):
        try:
            record = read(path, status.st_uid)
            check(record, digest)
        except FileNotFoundError:
            continue
        except Unusable as error:
            why = why or error
            continue
        return record, path
    if why is not None:
        raise why
    return None
