"""A policy as people name it: ``shinjuku:quantum=50us``, ``my/policy.py:Mine:depth=2``, ``package.module:Mine``.

Theory of operation: the host only takes the text apart. It never imports a policy: that is somebody's code, and runs in
the agent's process, which says what is wrong with it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from teal.errors import InvalidArgument

_SHIPPED = re.compile(r"[a-z][a-z0-9-]{0,63}")
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SETTING = re.compile(r"[A-Za-z][\w.#/-]{0,127}")  # slo.my-model, slo.#3
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """target: a shipped policy's name, or what is to be imported, with ``class_name``; settings: as they were typed."""

    target: str
    class_name: str
    settings: dict[str, str]

    @property
    def custom(self) -> bool:
        return bool(self.class_name)

    def __str__(self) -> str:
        head = f"{self.target}:{self.class_name}" if self.class_name else self.target
        return head + (":" + ",".join(f"{k}={v}" for k, v in self.settings.items()) if self.settings else "")


def parse(text: str, path: str = "$.policy") -> PolicySpec:
    """Raises InvalidArgument. A file's path becomes absolute, so that it means the same to host and agent."""
    if not isinstance(text, str) or not text or len(text) > _LONGEST or "\0" in text:
        raise _wrong(str(text), path)
    head, class_name, rest = text, "", ""
    if text.partition(":")[0].endswith(".py") or _is_module(text):
        head, _, after = text.partition(":")
        class_name, _, rest = after.partition(":")
        if not class_name and head.endswith(".py"):
            raise InvalidArgument(f"{text[:80]!r}: give the class in that file too, as in {head[:80]}:Mine", path=path)
        if not _CLASS.fullmatch(class_name):
            raise _wrong(text, path)
        if head.endswith(".py"):
            head = os.path.abspath(head)
    else:
        head, _, rest = text.partition(":")
        if not _SHIPPED.fullmatch(head):
            raise _wrong(text, path)
    return PolicySpec(head, class_name, settings(rest.split(",") if rest else (), path))


def _wrong(text: str, path: str) -> InvalidArgument:
    shown = text[:80]
    return InvalidArgument(
        f"{shown!r}, expected a policy such as shinjuku:quantum=50us, path/to/file.py:Class or package.module:Class",
        path=path,
    )


def _is_module(text: str) -> bool:
    """``package.module:Class``, or ``module:Class`` where what follows the colon is no setting."""
    head, colon, after = text.partition(":")
    first = after.partition(":")[0]
    return bool(colon) and bool(_MODULE.fullmatch(head)) and "=" not in first


def settings(pairs: list[str] | tuple[str, ...], path: str = "$.settings") -> dict[str, str]:
    """``name=value`` each. Raises InvalidArgument."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not _SETTING.fullmatch(name):
            raise InvalidArgument(f"{pair[:80]!r}, expected a setting such as quantum=50us", path=path)
        if name in found:
            raise InvalidArgument(f"setting {name!r} is given twice", path=path)
        found[name] = value.strip()
    return found
