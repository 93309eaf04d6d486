"""Durations as people write them: 200us, 10ms, 1.5s."""

from __future__ import annotations

import re

from teal.errors import InvalidArgument
from teal.host import argument

_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "": 1_000_000_000}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|)\s*")


def nanoseconds(value: str | float, path: str = "$") -> int:
    """Nanoseconds of "200us", "10ms", "1.5s", or of a number of seconds. Raises InvalidArgument."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise InvalidArgument(f"{value!r}, expected a duration such as 200us, 10ms or 1.5s", path=path)
        result = float(match[1]) * _UNITS[match[2]]
    else:
        result = argument.seconds(value, path) * 1e9
    if not 0 <= result <= 3600e9:
        raise InvalidArgument(f"{value!r}, expected 0 to one hour", path=path)
    return int(result)
