"""Calls over a network: loopback, beside a bare echo and beside what people use for remote calls in Python."""

from __future__ import annotations

from array import array
from contextlib import ExitStack

from teal import _core
from teal.bench.lanes import Entry, Times, paired_difference, paired_ratio
from teal.bench.report import Promise
from teal.bench.rivals import work

from . import cable
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
    """Beside a bare echo in C++; from Python, each route; gRPC and Ray."""
    _bare(stage)
    _cable(stage)
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


def _bare(stage: Stage) -> None:
    """The network loop's own cost: a call whose program runs in the loop's process, beside recvfrom and sendto."""
    group, plan = "64 B over loopback, no Python", stage.plan
    times = {name: Times() for name in ("bare echo", "bare echo, 64 B datagrams", "call", "call, sealed")}
    for block in range(plan.blocks):
        stage.say(f"bare echo, block {block + 1} of {plan.blocks}")
        found = _core.measure_duck_echo(
            calls=plan.fast, bytes=work.SMALL, client_core=stage.cores.client, duck_core=stage.cores.worker
        )
        for name, samples in zip(times, (found.bare, found.bare_small, found.call, found.sealed), strict=True):
            times[name].blocks.append(array("q", samples))
    notes = ("packets as long as ours", "", "the program in the loop's own process", "the same with a key")
    for (name, measured), note in zip(times.items(), notes, strict=True):
        stage.report.add(name, group, measured.all(), note)
    ratio = paired_ratio(times["call"], times["bare echo"])
    note = "the program in the loop's own process: with two cores a box would share one with the loop"
    stage.report.judge("duck.call.udp.vs_bare_echo", ratio.value, se=ratio.se, note=note)
    added = paired_difference(times["call, sealed"], times["call"])
    stage.report.judge("duck.call.crypto.added_us", added.value, se=added.se)


def _cable(stage: Stage) -> None:
    """The same between two network namespaces, where a duck wants a key."""
    stage.say("bare echo over a cable")
    group, bar = "64 B over veth, no Python", "duck.call.udp.veth.vs_bare_echo"
    try:
        found = cable.measured(
            "echo",
            blocks=stage.plan.blocks,
            calls=stage.plan.fast,
            bytes=work.SMALL,
            client_core=stage.cores.client,
            duck_core=stage.cores.worker,
        )
    except cable.NoCable as error:
        stage.report.absent("veth", group, str(error))
        stage.report.judge(bar, None, note=str(error))
        return
    times = {name: Times(blocks=blocks) for name, blocks in found.items()}
    notes = ("packets as long as ours", "the program in the loop's own process")
    for (name, measured), note in zip(times.items(), notes, strict=True):
        stage.report.add(name, group, measured.all(), note)
    ratio = paired_ratio(times["call, sealed"], times["bare"])
    stage.report.judge(bar, ratio.value, se=ratio.se, note="sealed: no duck listens beyond the loopback without a key")
