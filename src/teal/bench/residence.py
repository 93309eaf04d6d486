"""What it costs that a model is resident: the parts of `teal bench call` that do not time a single call.

Copies counted on the path that promises none, a second process attaching, many models on one worker, the CPU time of
a host that nobody calls, the memory of a host whose model is replaced a thousand times under load.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

from . import client, models
from .ground import Ground
from .lanes import paired_difference
from .machine import process_cpu_ns, process_rss_kib

QUIET_BEFORE_SECONDS = 1.0  # part of the promise
MEMORY_LOOKS, MEMORY_PAUSE_SECONDS = 5, 0.1  # a median of a few looks, since pages are given back a little later
PROMISED_RELOADS = 1000
RELOADS_AT_ONCE = 10


def copies(ground: Ground) -> None:
    """The counters of copies over prepared and plain calls on new_inputs."""
    with ground.client() as lane:
        found = lane.ask("copies", n=ground.plan.copies)
    calls = 4 * ground.plan.copies  # two models, two ways
    note = f"over {calls} calls on new_inputs, prepared and plain, 600 KB identity and MLP"
    ground.report.judge("call.copies_in", found["copies_in"], note=f"{note}; {found['bytes_copied']} bytes copied")
    ground.report.judge("call.copies_out", found["copies_out"], note=note)


def attach(ground: Ground) -> None:
    """New processes, one after the other: from the end of their import to their first answer."""
    samples = []
    for number in range(ground.plan.attaches):
        ground.say(f"process {number + 1} of {ground.plan.attaches}")
        with ground.client(once=True) as lane:
            samples.append(int(lane.ask("attach")))
    group, note = "residence", "new process: connect, find the MLP, first answer of model(array); after its imports"
    row = ground.report.add("attach", group, samples, note)
    value = None if row.p50_us is None else row.p50_us / 1e3
    note = f"median of {row.n} processes, slowest {max(samples) / 1e6:.1f} ms"
    ground.report.judge("call.attach.ms", value, note=note)


def switch(ground: Ground) -> None:
    """Eight resident models called in turn, against one called as often."""
    for name in client.SWITCHED:
        ground.load(name, models.mlp())
    with ground.client() as lane:
        rows = ("one model", "eight models")
        times = ground.turns([ground.entry(row, lane, row, ground.plan.fast) for row in rows])
    for name in client.SWITCHED:
        ground.host.ask("unload", name=name)
    for row in rows:
        ground.report.add_times(f"{row} in turn", "residence", times[row], "MLP 64-64-8, prepared calls, one worker")
    added = paired_difference(times["eight models"], times["one model"])
    ground.report.judge("call.switch.added_us", added.value, se=added.se, note="8 models in turn less one")


def idle(ground: Ground) -> None:
    """CPU time of host and worker while a client is attached and nobody calls."""
    with ground.client() as lane:
        lane.tell(do="run", variant="mlp prepared", warm=0, n=ground.plan.fast)
        pids = [int(pid) for pid in ground.host.ask("pids")]
        time.sleep(QUIET_BEFORE_SECONDS)
        before, start = [process_cpu_ns(pid) for pid in pids], time.monotonic_ns()
        time.sleep(ground.plan.quiet_seconds)
        after, elapsed = [process_cpu_ns(pid) for pid in pids], time.monotonic_ns() - start
    if not all(after):
        ground.report.judge("call.idle.cpu_percent", None, note=f"a process of {pids} ended while nobody called")
        return
    spent = [100 * (b - a) / elapsed for a, b in zip(before, after, strict=True)]
    each = ", ".join(f"{percent:.2f}" for percent in spent)
    note = f"of one core, over {elapsed / 1e9:.1f} s after 1 s of quiet; processes {each}"
    ground.report.judge("call.idle.cpu_percent", sum(spent), note=note)


def resident_kib(ground: Ground) -> int:
    """Memory of host and workers; a median of a few looks."""
    looks = []
    for _ in range(MEMORY_LOOKS):
        time.sleep(MEMORY_PAUSE_SECONDS)
        looks.append(sum(process_rss_kib(int(pid)) for pid in ground.host.ask("pids")))
    return int(statistics.median(looks))


def reload(ground: Ground) -> None:
    """The MLP replaced by its next version again and again while a client calls it without a pause."""
    plan, samples = ground.plan, []
    version = 1
    with ExitStack() as stack:
        lane = stack.enter_context(ground.client())

        def replace(count: int) -> None:
            nonlocal version
            while count > 0:
                step = min(count, RELOADS_AT_ONCE)
                arguments = {"name": client.RELOADED, "source": str(models.mlp())}
                samples.extend(ground.host.ask("reload", first=version, count=step, **arguments))
                version, count = version + step, count - step
                ground.say(f"version {version - 1}")

        replace(1)
        lane.tell(do="flood", variant=client.RELOADED)
        replace(plan.settle_reloads)
        samples.clear()
        before = resident_kib(ground)
        replace(plan.reloads)
        after = resident_kib(ground)
        load = lane.tell(do="ebb")
    ground.host.ask("unload", name=client.RELOADED)
    note = f"{load['calls']} calls at the same time, {load['failed']} failed"
    ground.report.add("reload", "residence", samples, f"load the next version, unload the one before; {note}")
    growth = 100 * (after - before) / before
    note = f"{before} KiB after {plan.settle_reloads} reloads, {after} KiB after {plan.reloads} more; {note}"
    note += "".join(f"; {error}" for error in load["errors"][:1])
    if plan.reloads < PROMISED_RELOADS:
        note = f"{growth:.2f} % over {plan.reloads} reloads, judged over {PROMISED_RELOADS} (not by --quick); {note}"
        ground.report.judge("call.reload.rss_growth_percent", None, note=note)
        return
    ok = False if load["failed"] else None
    ground.report.judge("call.reload.rss_growth_percent", growth, note=note, ok=ok)


PARTS: list[tuple[str, tuple[str, ...], Callable[[Ground], None]]] = [
    ("copies", ("call.copies_in", "call.copies_out"), copies),
    ("attach", ("call.attach.ms",), attach),
    ("switch", ("call.switch.added_us",), switch),
    ("idle", ("call.idle.cpu_percent",), idle),
    ("reload", ("call.reload.rss_growth_percent",), reload),
]
