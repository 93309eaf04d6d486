"""The pre-shared key of a duck: a file with 32 random bytes in hexadecimal, which nobody else may read.

Theory of operation: who has the key may run programs on the duck, so it is never given on a command line (others see
those) and never read from a file that others can read or change. The key itself is not sent: both ends derive the keys
of a connection from it (docs/duck-protocol.md).
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from teal.errors import InvalidArgument, NotFound

KEY_BYTES = 32
_TEXT = re.compile(r"[0-9a-fA-F]{64}")
_MOST = 4096


def make_key() -> str:
    """A new key as text, one line without its end."""
    return secrets.token_hex(KEY_BYTES)


def key_from(text: str, path: str = "$.key") -> bytes:
    """The 32 bytes of a key's text. Raises InvalidArgument, and does not repeat what it was given."""
    if not _TEXT.fullmatch(text.strip()):
        raise InvalidArgument("not a key: expected 64 hexadecimal digits, as `teal duck key` prints them", path=path)
    return bytes.fromhex(text.strip())


def read_key(file: str | os.PathLike[str]) -> bytes:
    """The key in a file. Raises NotFound, InvalidArgument: others may read the file, or it holds no key."""
    path = Path(file)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise NotFound(f"key file {path}: {error.strerror}; make one with `teal duck key > {path}`") from None
    with open(fd, "rb") as opened:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"key file {path} is not a regular file")
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o077:
            raise InvalidArgument(
                f"key file {path} has mode {status.st_mode & 0o777:04o} and belongs to user {status.st_uid}; "
                f"others may not read it: chmod 600 {path}"
            )
        return key_from(opened.read(_MOST).decode("ascii", "replace"), "$.key_file")
