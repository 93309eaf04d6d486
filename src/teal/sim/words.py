"""``name=value,name=value`` behind the head of an option, for a dataclass whose fields say what they take."""

from __future__ import annotations

import dataclasses
import math
from numbers import Real
from typing import Any

from teal.errors import InvalidArgument
from teal.host import argument
from teal.host.duration import nanoseconds

Time = str | float
"""A duration: "50us", "1.5ms", or a number of seconds."""


def number(value: object, low: float, high: float, path: str) -> float:
    """A finite number from ``low`` to ``high``. Raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise argument.wrong(value, path, f"a number from {low:g} to {high:g}")
    found = float(value)
    if not math.isfinite(found) or not low <= found <= high:
        raise InvalidArgument(f"{found:g}, expected {low:g} to {high:g}", path=path)
    return found


def time(value: object, path: str, least_ns: int = 0) -> int:
    """Nanoseconds of a Time. Raises InvalidArgument."""
    if not isinstance(value, str) and (isinstance(value, bool) or not isinstance(value, (int, float, Real))):
        raise argument.wrong(value, path, "a duration such as 50us, or seconds")
    found = nanoseconds(value if isinstance(value, str) else float(value), path)
    if found < least_ns:
        raise InvalidArgument(f"{value!r}, expected at least {least_ns} ns", path=path)
    return found


def flag(value: object, path: str) -> bool:
    """True or False. Raises InvalidArgument."""
    return argument.one_of(value, bool, path, "True or False")


_FLAGS = {"1": True, "yes": True, "on": True, "true": True, "0": False, "no": False, "off": False, "false": False}


def read(kind: type[Any], words: str, path: str) -> dict[str, Any]:
    """Arguments for ``kind`` out of its words; a flag may stand alone. Raises InvalidArgument."""
    fields = {field.name.replace("_", "-"): field for field in dataclasses.fields(kind)}
    found: dict[str, Any] = {}
    for word in words.split(",") if words else []:
        name, equals, value = word.strip().partition("=")
        field = fields.get(name.replace("_", "-"))
        if field is None:
            raise InvalidArgument(f"{name[:80]!r}, expected one of {', '.join(fields)}", path=path)
        if field.name in found:
            raise InvalidArgument(f"{name!r} is given twice; give it once", path=path)
        found[field.name] = _value(field, value if equals else "1", f"{path}.{field.name}")
    return found


def _value(field: dataclasses.Field[Any], text: str, path: str) -> Any:
    usual = field.default
    if isinstance(usual, bool):
        if text not in _FLAGS:
            raise InvalidArgument(f"{text[:80]!r}, expected 1 or 0", path=path)
        return _FLAGS[text]
    if isinstance(usual, (int, float)):
        try:
            return int(text) if isinstance(usual, int) else float(text)
        except ValueError:
            raise InvalidArgument(f"{text[:80]!r}, expected a number", path=path) from None
    return text
