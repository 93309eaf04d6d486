"""From an event in the kernel to a verdict that is readable in the kernel: the rows of L18 for `teal bench laika`.

The clock is the kernel's (bpf_ktime_get_ns), read by the BPF program itself when the event begins and after it has read
the verdict; in between it takes a slot, writes 31 features, sends and waits (roundtrip.bpf.c). The event is a
getppid(2) of this process at raw_tp/sys_enter. The worker has one core, the events another. Where BPF cannot be used,
the rows and the bar say why.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import teal
from teal import bpf
from teal.bench.energy import Effort, Meter
from teal.bench.report import Promise, Report

BAR = "laika.bpf.roundtrip.p50_us"
PROMISES = {BAR: Promise(5, "lower", "µs")}
PROGRAM = Path(__file__).with_name("roundtrip.bpf.c")
GROUP = "BPF: event to verdict, in the kernel"
_CONTROL = struct.Struct("=8I")
_MOST = 65_536  # samples the program has room for
_GETPPID = {"x86_64": 110, "aarch64": 173}


@dataclass(frozen=True)
class Trips:
    """Round trips that were answered, in ns, and those that were not."""

    ns: list[int]
    lost: int  # no slot, or no verdict within the wait
    failed: int
    effort: Effort | None = None  # of all events, answered or not: this process, in the kernel too, and its children


def round_trips(
    session: bpf.Session,
    n: int,
    *,
    core: int,
    feature_bytes: int,
    verdict: int,
    patience: int = 100_000,
    tracepoint: bool = True,
) -> Trips:
    """n events on ``core``, each waiting at most ``patience`` rounds of some 10 ns.

    feature_bytes: 1 or 4. verdict: index of its tensor, inputs first.
    """
    before = os.sched_getaffinity(0)
    with bpf.Programs(PROGRAM, session) as programs:
        os.sched_setaffinity(0, {core})
        try:
            getppid = _GETPPID[platform.machine()]
            programs.write("control", _CONTROL.pack(os.getpid(), getppid, feature_bytes, verdict, patience, 0, 0, 0))
            event: Callable[[], object] = ctypes.CDLL(None).getppid if tracepoint else lambda: programs.run("run_once")
            if tracepoint:
                programs.attach()
            meter = Meter()
            meter.start([os.getpid()])
            for _ in range(min(n, _MOST)):
                event()
            effort = meter.stop()
            programs.detach()
        finally:
            os.sched_setaffinity(0, before)
        *_, taken, lost, failed = _CONTROL.unpack(programs.read("control"))
        samples = np.frombuffer(programs.read("samples"), np.uint32)[: min(taken, _MOST)]
    return Trips(samples.tolist(), lost, failed, effort)


def measure(report: Report, *, quick: bool = False) -> None:
    """Adds the rows, and judges the bar. Needs two cores; leaves nothing attached or pinned."""
    reason = bpf.why_not()
    cores = sorted(os.sched_getaffinity(0))
    if reason is None and len(cores) < 2:
        reason = "one core: a worker that spins and an event need one each"
    if reason is None and platform.machine() not in _GETPPID:
        reason = f"the number of getppid(2) on {platform.machine()} is not known here"
    if reason is not None:
        report.absent("worker spinning", GROUP, reason)
        report.judge(BAR, None, note=reason)
        return
    n = 5_000 if quick else 60_000
    spinning = _trips(n, "10ms", cores)
    note = f"31 floats in, builtin sum, verdict read; {spinning.lost} of {n} events without one in time"
    row = report.add("worker spinning", GROUP, spinning.ns, note, spinning.effort, n)
    report.judge(
        BAR,
        row.p50_us,
        note=_why(spinning, n),
        ok=None if spinning.failed == 0 else False,
    )
    asleep = _trips(n // 20, 0, cores, patience=2_000_000)
    note = "woken through the bell: ring buffer, epoll, futex"
    report.add("worker asleep", GROUP, asleep.ns, note, asleep.effort, n // 20)


def _why(trips: Trips, n: int) -> str:
    """What a bar has to say beside its value, or instead of one."""
    if trips.failed:
        return f"{trips.failed} failed"
    return "" if trips.ns else f"none of {n} events had its verdict in time: who else runs on these cores?"


def _trips(n: int, idle: str | float, cores: list[int], patience: int = 100_000) -> Trips:
    with teal.Host(idle=idle, cores=cores[:1]) as host:
        model = host.load("sum", "builtin:sum")
        with bpf.Session(model, slots=64, x=(31,)) as session:
            return round_trips(session, n, core=cores[1], feature_bytes=4, verdict=1, patience=patience)
