"""What a hatch says of its machine, in the words of the classic protocol: lines of ASCII, ``key: value``."""

from __future__ import annotations

from typing import Any

from teal._version import __version__
from teal.duck.classic.request import MOST_READ
from teal.duck.vitals import Vitals, vitals


def machine_facts() -> dict[str, Any]:
    """Read now. Temperatures in thousandths of a degree Celsius."""
    seen = vitals()
    return {
        "system": f"teal {__version__} on {seen.system} {seen.machine}",
        "cpu-model-name": seen.cpu_model or "unknown",
        "microcode": seen.microcode or "unknown",
        "cpu-temp": _thousandths(seen),
        "cores": seen.cores,
        "memory-kb": (seen.memory or 0) // 1024,
        "memory-available-kb": seen.memory_available // 1024,
        "abi-version": 40,
        "extensions": "digest-buffer",
    }


def temperature() -> str:
    """Thousandths of a degree Celsius, or unknown."""
    return _thousandths(vitals())


def cpu_model() -> str:
    return vitals().cpu_model or "unknown"


def lines(facts: dict[str, Any]) -> bytes:
    """As they travel; they fit a datagram."""
    said = "".join(f"\n{name}: {value}" for name, value in facts.items())
    return said.encode("ascii", "replace")[:MOST_READ]


def _thousandths(seen: Vitals) -> str:
    return "unknown" if seen.temperature is None else str(round(seen.temperature * 1000))
