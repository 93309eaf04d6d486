"""Sizes as people write them: 4096, 512K, 1MiB, 2G (powers of 1024)."""

from __future__ import annotations

import re

from teal.errors import InvalidArgument

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def nbytes(text: str, path: str = "$") -> int:
    """Bytes of a size. Raises InvalidArgument."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"{text[:80]!r}, expected a size such as 4096, 512K or 1MiB", path=path)
    return int(float(match[1]) * (1 << _UNITS[match[2].upper()]))
