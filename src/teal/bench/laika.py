"""`teal bench laika`: what it costs to reach a compute device: a resident kernel (APK) beside a launch each time (PL).

The task is the identity of 64 bytes that lie in place, so a row is the path and nothing else. This process has one
core, the device's threads have another; the echo floor between the two (a line there and a line back) is measured in
every block, because hypervisors move virtual cores and the floor with them. The ways take turns in blocks, in this
process; while launches are timed the resident kernel is parked, as it would take their core.

A launch is prepared once: its arguments stay, so a call is enqueue and finish. A CPU driver may then run the task on
the calling thread, which saves it a trip between cores and costs the caller its core; the row "on the device's
thread" polls for the end instead. Bars are judged against the cheaper of the two.

The parts after that stand in files of their own: `resident` (the systems loads end to end through a host, beside
launches), `capi` (a C program as the client), `bpf` (a program inside the kernel as the client), `hostile` (a client
that fills its quota). A part that cannot run here leaves its bars unjudged and says why.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from teal import _core, device
from teal.device import MappedRegion, Place, Resident, Task, source
from teal.device.protocol import Device
from teal.errors import TealError

from . import bpf, capi, hostile, machine, resident
from .energy import Meter
from .lanes import Times, estimate, paired_ratio
from .report import Promise, Report, Row

RUNTIMES = ("pocl", "intel")
PROMISES = {
    "laika.apk_vs_pl.ratio.pocl": Promise(10, "higher", "×"),  # noqa: RUF001
    "laika.apk_vs_pl.ratio.intel": Promise(10, "higher", "×"),  # noqa: RUF001
    "laika.apk.added.p50_us": Promise(1.2, "lower", "µs"),
    **resident.PROMISES,
    "laika.c.identity.p50_us": Promise(capi.BAR_US, "lower", "µs"),
    **bpf.PROMISES,
    **hostile.PROMISES,
}
BYTES = 64


@dataclass(frozen=True)
class Plan:
    """Blocks, and calls a block: of a resident kernel, of a launch; untimed ones before each."""

    blocks: int
    resident: int
    launches: int
    warm: int
    jitter_seconds: float


FULL = Plan(blocks=12, resident=5000, launches=500, warm=200, jitter_seconds=1.0)
QUICK = Plan(blocks=5, resident=1000, launches=100, warm=50, jitter_seconds=0.2)


@dataclass
class Ways:
    """What is measured of one device, by row."""

    times: dict[str, Times] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)

    def block(self, row: str, measure: Callable[[], array[int]], warm: int = 0) -> None:
        """Runs one block of a row; the driver's threads are in this process, so its effort is theirs too."""
        self.meter.start([os.getpid()])
        samples = measure()
        times = self.times.setdefault(row, Times())
        times.spent(warm + len(samples), self.meter.stop())
        times.blocks.append(samples)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """This thread on one core, no garbage collector."""
    before, collected = os.sched_getaffinity(0), gc.isenabled()
    os.sched_setaffinity(0, {core})
    gc.disable()
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        if collected:
            gc.enable()


def timed(call: Callable[[], Any], n: int, warm: int) -> array[int]:
    clock = time.perf_counter_ns
    for _ in range(warm):
        call()
    samples = array("q", bytes(8 * n))
    for i in range(n):
        start = clock()
        call()
        samples[i] = clock() - start
    return samples


class Stage:
    """An open device with the identity task, a line and a prepared launch."""

    def __init__(self, opened: Device) -> None:
        self.device = opened
        self.region = MappedRegion.create(1 << 16)
        imported = opened.import_region(self.region)
        text = "identity" if opened.name == "cpu" else source.text(source.IDENTITY)
        self.program = opened.build(text)
        weights, given, made, unused = (Place(imported, 8192 + 256 * part, BYTES) for part in range(4))
        task = Task(weights, given, made, unused, BYTES)
        self.region.bytes[8192 + 256 : 8192 + 256 + BYTES] = 7
        self.launch = self.program.prepare(task)
        self.copies = self.program.prepare(task, "copies") if opened.name != "cpu" else None
        self.resident = Resident(self.program, idle=5.0)
        self.resident.add(Place(imported, 4096, 128), task)
        self.line = _core.DeviceLine(self.region.bytes, 4096)

    def measure(self, plan: Plan, cores: machine.Cores) -> Ways:
        """Raises TealError where the device fails, RuntimeError where it answers wrongly."""
        ways = Ways()
        with on_core(cores.client):
            for _ in range(plan.blocks):
                ways.block(
                    "echo floor 64 B",
                    lambda: array("q", _core.measure_echo(BYTES, plan.resident, cores.client, cores.worker)),
                )
                launches = {"launch": self.launch.run, "launch, on the device's thread": self._launch_and_poll}
                if self.copies is not None:
                    launches["launch + copies"] = self.copies.run
                for row, call in launches.items():
                    ways.block(row, partial(timed, call, plan.launches, plan.warm), plan.warm)
                self.resident.wake()
                ways.block("resident", partial(timed, self.line.run, plan.resident, plan.warm), plan.warm)
                if self.line.done != self.line.asked:
                    raise RuntimeError(f"{self.device.name}: the resident kernel left while it was measured")
                self.resident.quit()
        if (self.region.bytes[8192 + 512 : 8192 + 512 + BYTES] != 7).any():
            raise RuntimeError(f"{self.device.name}: a wrong answer")
        return ways

    def _launch_and_poll(self) -> None:
        event = self.launch.start()
        while not event.done():
            pass

    def close(self) -> None:
        self.resident.close()
        self.device.close()


NOTES = {
    "echo floor 64 B": "one line there and one back, both ends spinning in C++",
    "launch": "PL: arguments set before, enqueue and finish from Python",
    "launch, on the device's thread": "PL: enqueue, flush, poll for the end from Python",
    "launch + copies": "input and output through device memory, from Python",
    "resident": "APK: DeviceLine.run() from Python",
}


def measure_device(report: Report, name: str, plan: Plan, cores: machine.Cores) -> Ways | None:
    """Rows of one device; None, and why in a row, where it is not here."""
    try:
        stage = Stage(device.open(name, cores={cores.worker}))
        try:
            ways = stage.measure(plan, cores)
        finally:
            stage.close()
    except TealError as error:
        report.absent(f"{name} resident", name, str(error).splitlines()[0])
        return None
    for row, times in ways.times.items():
        report.add_times(f"{name} {row}", name, times, NOTES[row])
    return ways


def judge(report: Report, found: dict[str, Ways]) -> None:
    """Bars from the rows; those of a runtime that is not here stay for judge_rest()."""
    slowest = None
    for runtime, ways in found.items():
        times = ways.times
        resident, floor = times["resident"], statistics.median(times["echo floor 64 B"].medians_us())
        cheaper = min(("launch", "launch, on the device's thread"), key=lambda row: statistics.median(times[row].all()))
        ratio = paired_ratio(times[cheaper], resident)
        note = (
            f"{cheaper} {statistics.median(times[cheaper].all()) / 1e3:.2f} µs, "
            f"resident {statistics.median(resident.all()) / 1e3:.2f}, echo floor {floor:.2f}"
        )
        report.judge(f"laika.apk_vs_pl.ratio.{runtime}", ratio.value, se=ratio.se, note=note)
        added = estimate(resident.medians_us())
        if slowest is None or added.value > slowest[0].value:
            slowest = added, f"{runtime}, the slower of those here; echo floor {floor:.2f} µs beside it"
    if slowest is not None:
        report.judge("laika.apk.added.p50_us", slowest[0].value, se=slowest[0].se, note=slowest[1])


def versions() -> dict[str, str]:
    found = {}
    for name in ("pyopencl", "pocl-binary-distribution", "intel-opencl-rt"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def from_c(report: Report, cores: machine.Cores, quick: bool) -> None:
    """A C program calls the identity."""
    calls = 20_000 if quick else 100_000
    for row in capi.rows(calls, BYTES, (cores.client, cores.worker)):
        note = f"{row.copies} copies in {row.calls} calls; echo floor {row.floor_us:.2f} µs"
        times = row.p50_us, row.p99_us, row.p999_us
        report.rows.append(Row(row.bar, "C client", row.calls, *times, note, row.cpu_s_per_1000, row.j_per_1000))
        if row.bar == "laika.c.identity":
            report.judge("laika.c.identity.p50_us", row.p50_us, note=f"in place; echo floor {row.floor_us:.2f} µs")


def parts(report: Report, cores: machine.Cores, quick: bool) -> list[tuple[str, tuple[str, ...], Callable[[], None]]]:
    """Name, bars and measurement of what comes after the devices."""
    batches = resident.SMALL if quick else resident.DOUBLES
    pair = (cores.client, cores.worker)
    seconds = 0.03 if quick else 0.1
    return [
        (
            "systems loads on devices",
            tuple(resident.PROMISES),
            lambda: resident.measure(report, RUNTIMES, pair, seconds=seconds, batches=batches),
        ),
        ("C client", ("laika.c.identity.p50_us",), lambda: from_c(report, cores, quick)),
        ("BPF client", tuple(bpf.PROMISES), lambda: bpf.measure(report, quick=quick)),
        ("hostile client", tuple(hostile.PROMISES), lambda: hostile.measure(report, cores, blocks=6 if quick else 20)),
    ]


def measure(*, quick: bool = False, progress: Callable[[str], None] | None = None) -> Report:
    """Runs the bench and returns its report. Raises RuntimeError on a machine with one core."""
    plan, cores = QUICK if quick else FULL, machine.two_cores()
    report = Report("laika", PROMISES, versions=machine.own_versions() | versions())
    report.settings = {"quick": quick, "plan": vars(plan)}
    start = time.monotonic()
    report.machine = machine.describe(cores, plan.jitter_seconds)
    found: dict[str, Ways] = {}
    for name in ("cpu", *(f"opencl:{runtime}" for runtime in RUNTIMES)):
        if progress is not None:
            progress(name)
        ways = measure_device(report, name, plan, cores)
        if ways is not None and name != "cpu":
            found[name.partition(":")[2]] = ways
    judge(report, found)
    for name, bars, part in parts(report, cores, quick):
        if progress is not None:
            progress(name)
        try:
            part()
        except (TealError, RuntimeError, OSError) as error:
            said = str(error).splitlines()[0] if str(error) else repr(error)
            report.absent(f"{name} failed", name, said)
            judged = {bar.id for bar in report.bars}
            for bar in bars:
                if bar not in judged:
                    report.judge(bar, None, note=f"{name} failed: {said}")
    report.judge_rest("this runtime is not here: pip install 'teal-runtime[opencl,opencl-intel]'")
    report.settings["seconds"] = round(time.monotonic() - start, 1)
    return report
