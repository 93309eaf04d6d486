"""What a duck says of its machine: processor, microcode, temperature, cores, memory.

Theory of operation: as in host/machine.py, facts that cannot be read are None and nothing here fails.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from teal import _core
from teal.host import machine

_MOST_ZONES = 64


@dataclass(frozen=True, slots=True)
class Vitals:
    """The machine of a duck. Temperatures in degrees Celsius, memory in bytes, frequencies in MHz."""

    system: str
    machine: str
    cpu_model: str | None
    microcode: str | None
    cpu_mhz: float | None
    temperature: float | None
    temperature_of: str | None
    cores: int
    isa: str
    memory: int | None
    memory_available: int


def vitals(root: Path = machine.ROOT) -> Vitals:
    """Read now."""
    facts = _cpu_facts(root)
    temperature, sensor = _temperature(root)
    mhz = facts.get("cpu MHz")
    return Vitals(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu_model=facts.get("model name"),
        microcode=facts.get("microcode"),
        cpu_mhz=_number(mhz),
        temperature=temperature,
        temperature_of=sensor,
        cores=len(os.sched_getaffinity(0)),
        isa=_core.isa(),
        memory=machine.memory_info(root).get("MemTotal"),
        memory_available=_core.available_memory(),
    )


def _cpu_facts(root: Path) -> dict[str, str]:
    facts: dict[str, str] = {}
    for line in (machine.read_text(root, "proc/cpuinfo") or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            facts.setdefault(name.strip(), value.strip())
    return facts


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _temperature(root: Path) -> tuple[float | None, str | None]:
    """The hottest sensor that is of a processor, else the hottest there is."""
    found: list[tuple[bool, float, str]] = []
    for i in range(_MOST_ZONES):
        kind = machine.read_text(root, f"sys/class/thermal/thermal_zone{i}/type")
        if kind is None:
            break
        millidegrees = machine.read_int(root, f"sys/class/thermal/thermal_zone{i}/temp")
        if millidegrees is not None and -50_000 < millidegrees < 200_000:
            found.append((any(word in kind for word in ("pkg", "cpu", "core")), millidegrees / 1000, kind))
    for i in range(_MOST_ZONES):
        name = machine.read_text(root, f"sys/class/hwmon/hwmon{i}/name")
        if name is None:
            break
        millidegrees = machine.read_int(root, f"sys/class/hwmon/hwmon{i}/temp1_input")
        if millidegrees is not None and -50_000 < millidegrees < 200_000:
            found.append((name in ("coretemp", "k10temp", "zenpower"), millidegrees / 1000, name))
    if not found:
        return None, None
    _, degrees, sensor = max(found)
    return degrees, sensor
