"""What a bench ran on: the machine in words, the versions of everything involved, and the jitter floor.

The jitter floor is what a program that only looks at the clock experiences on a core during one second: gaps in which
somebody else had the core (the hypervisor, mostly). No percentile of a microsecond-scale call can be better than it,
so it is measured in every run and printed beside the rows.
"""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .energy import Packages

GAPS_US = (5, 20, 100)


@dataclass(frozen=True)
class Cores:
    """Where a bench puts its two sides."""

    client: int
    worker: int


def two_cores() -> Cores:
    """The first two cores that this process may use. Raises RuntimeError where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError(
            f"a bench puts client and worker on cores of their own and may use only core {cores[0]}; "
            "allow it two (taskset, cpuset) and run it again"
        )
    return Cores(cores[0], cores[1])


def jitter(core: int, seconds: float) -> dict[str, float]:
    """Spins on a core and counts the gaps between looks at the clock.

    Returns gaps_over_N_us for each N of GAPS_US, lost_ms (the sum of gaps over the smallest N) and the seconds spun.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    gc_was_on = gc.isenabled()
    gc.disable()
    clock, threshold, gaps = time.perf_counter_ns, GAPS_US[0] * 1000, []
    try:
        start = last = clock()
        end = start + int(seconds * 1e9)
        while last < end:
            now = clock()
            if now - last > threshold:
                gaps.append(now - last)
            last = now
    finally:
        os.sched_setaffinity(0, before)
        if gc_was_on:
            gc.enable()
    found: dict[str, float] = {f"gaps_over_{us}_us": sum(gap > us * 1000 for gap in gaps) for us in GAPS_US}
    return found | {"lost_ms": round(sum(gaps) / 1e6, 2), "seconds": seconds}


def text(path: str) -> str | None:
    """The stripped text of a file of the kernel's, None where it has no such file."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def chosen(setting: str | None) -> str | None:
    """The bracketed choice of a kernel setting such as `always [madvise] never`."""
    if setting is None or "[" not in setting:
        return setting
    return setting.split("[", 1)[1].split("]", 1)[0]


def cpu_model() -> str:
    for line in (text("/proc/cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_gib() -> float:
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def describe(cores: Cores, jitter_seconds: float) -> dict[str, Any]:
    """The machine, with the jitter floor of both cores measured now."""
    found: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "client_core": cores.client,
        "worker_core": cores.worker,
        "memory_gib": memory_gib(),
        "kernel": platform.release(),
        "virtual": "hypervisor" in (text("/proc/cpuinfo") or ""),
        "clock_source": text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "governor": text(f"/sys/devices/system/cpu/cpu{cores.worker}/cpufreq/scaling_governor"),
        "smt": text("/sys/devices/system/cpu/smt/control"),
        "thp": chosen(text("/sys/kernel/mm/transparent_hugepage/enabled")),
        "thp_shmem": chosen(text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        "load_before": round(os.getloadavg()[0], 2),
        "energy": Packages().reason or "RAPL",
    }
    found["jitter"] = {f"core {core}": jitter(core, jitter_seconds) for core in (cores.client, cores.worker)}
    return found


def own_versions() -> dict[str, str]:
    """Versions in this environment: Teal, Python, numpy, onnxruntime."""
    found = {"python": platform.python_version()}
    for name, distribution in (("teal", "teal-runtime"), ("numpy", "numpy"), ("onnxruntime", "onnxruntime")):
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def process_cpu_ns(pid: int) -> int:
    """CPU time that a process has used so far, all its living threads together; ns. 0 for a process that is gone."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        if (spent := text(f"{task}/schedstat")) is not None:
            total += int(spent.split()[0])
        elif (stat := text(f"{task}/stat")) is not None:  # a kernel without scheduler statistics: clock ticks
            user, system = stat.rpartition(")")[2].split()[11:13]
            total += (int(user) + int(system)) * 10**9 // os.sysconf("SC_CLK_TCK")
    return total


def process_rss_kib(pid: int) -> int:
    """Resident set of a process in KiB, 0 where it is gone. (The proportional one moves with what others share.)"""
    for line in (text(f"/proc/{pid}/smaps_rollup") or "").splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1])
    return 0


def python_version(python: str) -> str:
    """The version of another interpreter."""
    command = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
