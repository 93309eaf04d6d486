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
from .yard import Yard

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
    """What a call costs beside recvfrom and sendto: to a box on a core of its own, and through the duck's loop."""
    group, plan = "64 B over loopback, no Python", stage.plan
    direct = {name: Times() for name in ("bare echo", "bare echo, 64 B datagrams", "call", "call, sealed")}
    loop = {name: Times() for name in ("bare echo, loop", "", "call by the loop", "call by the loop, sealed")}
    with Yard(stage.programs["echo"]) as yard:
        for block in range(plan.blocks):
            stage.say(f"bare echo, block {block + 1} of {plan.blocks}")
            _append(direct, yard.direct_times(plan.fast, work.SMALL, stage.cores.client, stage.cores.worker))
            found = _core.measure_duck_echo(
                calls=plan.fast, bytes=work.SMALL, client_core=stage.cores.client, duck_core=stage.cores.worker
            )
            _append(loop, found)
    notes = {
        "bare echo": "packets as long as a direct call's",
        "call": "direct: the client on one core, the program's box on the other",
        "call, sealed": "the same with a key",
        "bare echo, loop": "packets as long as those of a call through the duck",
        "call by the loop": "through the duck's loop, the program in the loop's own process",
        "call by the loop, sealed": "the same with a key",
    }
    for name, measured in (direct | loop).items():
        if name and measured.all():
            stage.report.add(name, group, measured.all(), notes.get(name, ""))
    ratio = paired_ratio(direct["call"], direct["bare echo"])
    note = "a real box, called directly, beside a bare echo of packets as long"
    stage.report.judge("duck.call.udp.vs_bare_echo", ratio.value, se=ratio.se, note=note)
    times = direct if direct["call, sealed"].all() else loop
    plain, sealed = [name for name in times if name.startswith("call")]
    added = paired_difference(times[sealed], times[plain])
    where = "direct calls" if times is direct else "through the loop: boxes have no libcrypto here"
    stage.report.judge("duck.call.crypto.added_us", added.value, se=added.se, note=where)


def _append(times: dict[str, Times], found: _core.DuckDirectTimes | _core.DuckEchoTimes) -> None:
    for into, samples in zip(times.values(), (found.bare, found.bare_small, found.call, found.sealed), strict=True):
        if samples:
            into.blocks.append(array("q", samples))


def _cable(stage: Stage) -> None:
    """The same between two network namespaces, where a duck wants a key."""
    stage.say("bare echo over a cable")
    group, bar = "64 B over veth, no Python", "duck.call.udp.veth.vs_bare_echo"
    try:
        found = cable.measured(
            "echo",
            program=stage.programs["echo"],
            blocks=stage.plan.blocks,
            calls=stage.plan.fast,
            nbytes=work.SMALL,
            cores=[stage.cores.client, stage.cores.worker],
        )
    except cable.NoCable as error:
        stage.report.absent("veth", group, str(error))
        stage.report.judge(bar, None, note=str(error))
        return
    times = {name: Times(blocks=blocks) for name, blocks in found.items() if any(blocks)}
    notes = {
        "bare": "packets as long as a direct call's",
        "call, sealed": "direct: the client on one core, the program's box on the other",
        "bare, loop": "packets as long as those of a call through the duck",
        "call by the loop, sealed": "through the duck's loop, the program in the loop's own process",
    }
    for name, measured in times.items():
        stage.report.add(name, group, measured.all(), notes[name])
    direct = "call, sealed" in times
    ours, theirs = ("call, sealed", "bare") if direct else ("call by the loop, sealed", "bare, loop")
    ratio = paired_ratio(times[ours], times[theirs])
    note = "a real box, called directly" if direct else "through the loop: boxes have no libcrypto here"
    note += "; sealed: no duck listens beyond the loopback without a key"
    stage.report.judge(bar, ratio.value, se=ratio.se, note=note)
