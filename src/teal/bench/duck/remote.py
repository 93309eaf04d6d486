"""Calls over a network: loopback, beside a bare echo and beside what people use for remote calls in Python."""

from __future__ import annotations

from contextlib import ExitStack

from teal.bench.lanes import Entry, paired_ratio
from teal.bench.report import Promise

from .stage import Stage

PROMISES = {
    "duck.call.udp.vs_bare_echo": Promise(1.15, "lower", "×"),  # noqa: RUF001
    "duck.call.udp.veth.vs_bare_echo": Promise(1.3, "lower", "×"),  # noqa: RUF001
    "duck.call.crypto.added_us": Promise(1.5, "lower", "µs"),
    "duck.vs_grpc.ratio": Promise(5, "higher", "×"),  # noqa: RUF001
    "duck.vs_ray_call.ratio": Promise(20, "higher", "×"),  # noqa: RUF001
}
ROWS = {
    "teal udp": ("udp prepared", "no key (loopback only), prepared call"),
    "teal udp, key": ("keyed prepared", "sealed, prepared call"),
    "teal udp, key, plain call": ("keyed plain", "session.call(bytes)"),
    "teal tcp, key": ("tcp prepared", "sealed, prepared call"),
}


def measure(stage: Stage) -> None:
    """From Python, each route; gRPC and Ray."""
    group, plan = "64 B over loopback, from Python", stage.plan
    with ExitStack() as stack:
        lane = stage.client(stage.ducks(stage.cores.worker), stack)
        entries = [Entry(row, lane, variant, plan.slow, plan.warm) for row, (variant, _) in ROWS.items()]
        notes = {row: note for row, (_, note) in ROWS.items()}
        for row, module in (("gRPC", "grpc_echo"), ("Ray", "ray_echo")):
            if (rival := stage.rival(module, stack, row, group)) is not None:
                entries.append(Entry(row, rival, "echo", plan.slow, plan.warm))
                notes[row] = rival.note
        times = stage.turns(entries)
    for row, measured in times.items():
        stage.report.add_times(row, group, measured, notes[row])
    for bar, row in (("duck.vs_grpc.ratio", "gRPC"), ("duck.vs_ray_call.ratio", "Ray")):
        if row in times:
            ratio = paired_ratio(times[row], times["teal udp, key, plain call"])
            stage.report.judge(bar, ratio.value, se=ratio.se, note="over session.call(bytes), sealed UDP")
        else:
            stage.report.judge(bar, None, note=f"{row} is not installed: make bench-setup")
