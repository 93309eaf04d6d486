"""``--pool NAME[:SETTING=VALUE,...]`` of `teal serve`: a pool beside the default one."""

from __future__ import annotations

import re
from typing import Any

import click

from teal.cli import options

_CORES = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_NUMBERS = ("workers", "threads", "in_flight", "slots", "keep", "spares", "batch", "agents")
_SIZES = ("bytes", "memory", "agent_memory")
_SETTINGS = (
    "workers, idle, threads, cores, memory, keep, spares, batch, delay, quantum, helps and ducks (parted "
    "by +), duck-key-file, bytes, in-flight, slots, policy (its settings parted by semicolons), agents, link, "
    "agent-core, placement, max-wait, max-overtaken, heartbeat, come-back, local-fast-path and agent-memory"
)


def cores(text: str | None, hint: str = "--cores") -> list[int] | None:
    """The cores of a list such as 1,2 or 4-7. Raises click.BadParameter."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = _CORES.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise click.BadParameter(f"{text[:80]!r}, expected cores such as 1,2 or 4-7", param_hint=hint)
        found.update(range(first, last + 1))
    return sorted(found)


def pools(texts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Settings by the name of the pool, as Host takes them. Raises click.BadParameter."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, settings = text.partition(":")
        if not name:
            raise click.BadParameter(f"{text[:80]!r}, expected NAME or NAME:workers=2,…", param_hint="--pool")
        if name in found:
            raise click.BadParameter(f"{name[:80]!r} is given twice", param_hint="--pool")
        found[name] = {key: _value(key, value) for key, value in _split(settings).items()}
    return found


def _split(text: str) -> dict[str, str]:
    """A part without "=" goes on with the list before it: cores=1,4-7."""
    found: dict[str, str] = {}
    last = ""
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals and last in ("cores", "agent_core"):
            found[last] += f",{part}"
        elif not equals:
            raise click.BadParameter(
                f"{part[:80]!r}, expected SETTING=VALUE; there are {_SETTINGS}", param_hint="--pool"
            )
        elif name in found:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="--pool")
        else:
            found[name] = value.strip()
            last = name
    return found


def _value(name: str, text: str) -> Any:
    if name in _NUMBERS:
        if not re.fullmatch(r"-?\d{1,18}", text):
            raise click.BadParameter(f"{name}={text[:80]!r}, expected a whole number", param_hint="--pool")
        return int(text)
    if name in ("cores", "agent_core"):
        return cores(text, "--pool")
    if name in _SIZES:
        return options.size(text, "--pool")
    if name in ("ducks", "helps"):
        return [one for one in text.split("+") if one]
    if name in ("policy", "link"):
        return text.replace(";", ",")
    if name == "local_fast_path":
        if text not in ("yes", "no"):
            raise click.BadParameter(f"{name}={text[:80]!r}, expected yes or no", param_hint="--pool")
        return text == "yes"
    return text  # idle, delay, quantum, or what there is not: the host's own check says so
