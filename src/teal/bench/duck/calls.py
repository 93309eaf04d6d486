"""Calls on this machine: the client and the program's box spin beside each other, nobody in between."""

from __future__ import annotations

import statistics
from array import array
from contextlib import ExitStack

from teal import _core
from teal.bench.lanes import Entry, LaneError, Times, estimate
from teal.bench.report import Promise
from teal.bench.rivals import work

from . import limit
from .stage import Stage
from .yard import Yard

PROMISES = {
    "duck.call.shm.p50_us.core": Promise(1.0, "lower", "µs"),
    "duck.call.shm.p50_us.python": Promise(2.0, "lower", "µs"),
    "duck.multicore.speedup": Promise(1.85, "higher", "×"),  # noqa: RUF001
}
COLUMNS = 4096


def measure(stage: Stage) -> None:
    """From C++, from Python; two cores against one."""
    _core_calls(stage)
    group, plan = "64 B, this machine", stage.plan
    with ExitStack() as stack:
        ducks = stage.ducks(stage.cores.worker)
        lane = stage.client(ducks, stack)
        entries = [Entry(f"teal {way}", lane, f"shm {way}", plan.fast, plan.warm) for way in ("prepared", "plain")]
        times = stage.turns(entries)
    notes = {"teal prepared": "arguments in place, the answer's view used again", "teal plain": "session.call(bytes)"}
    for row, measured in times.items():
        stage.report.add_times(row, group, measured, notes[row])
    p50 = statistics.median(times["teal prepared"].all()) / 1e3
    plain = statistics.median(times["teal plain"].all()) / 1e3
    se = estimate(times["teal prepared"].medians_us()).se
    stage.report.judge("duck.call.shm.p50_us.python", p50, se=se, note=f"session.call(bytes) {plain:.2f} µs beside it")
    _cores(stage)


def _core_calls(stage: Stage) -> None:
    """C++ on the clients' core, the box on the ducks'; a line of memory there and back beside it."""
    group, plan, cores = "64 B, no Python", stage.plan, stage.cores
    calls, echoes = Times(), Times()
    with Yard(stage.programs["echo"]) as yard:
        box = yard.open(pin=cores.worker)
        _core.measure_box_calls(box, cores.client, work.SMALL, plan.warm)
        for _ in range(plan.blocks):
            calls.blocks.append(array("q", _core.measure_box_calls(box, cores.client, work.SMALL, plan.fast)))
            echoes.blocks.append(array("q", _core.measure_line_echo(cores.client, cores.worker, plan.fast)))
    floor = stage.report.add("echo floor", group, echoes.all(), "one line there and back, both ends spinning")
    row = stage.report.add("teal, core to core", group, calls.all(), "box::Caller, the program copies its arguments")
    se = estimate(calls.medians_us()).se
    note = f"echo floor {floor.p50_us:.2f} µs beside it"
    stage.report.judge("duck.call.shm.p50_us.core", row.p50_us, se=se, note=note)


def _cores(stage: Stage) -> None:
    """GEMV over weights that fit no cache, by one core and by two; the client sleeps meanwhile."""
    group, plan = f"GEMV over {stage.plan.weights >> 20} MiB", stage.plan
    with ExitStack() as stack:
        ducks = stage.ducks(None)
        lane = stage.client(ducks, stack, core=None, gemv=[plan.weights, COLUMNS])
        entries = [Entry(f"{cores} core{'s'[: cores - 1]}", lane, f"gemv {cores}", 1, 1) for cores in (1, 2)]
        times = stage.turns(entries, plan.large)
    for row, measured in times.items():
        rate = plan.weights / statistics.median(measured.all())
        stage.report.add_times(row, group, measured, f"{rate:.1f} GB/s")
    ratios = estimate([a / b for a, b in zip(times["1 core"].medians_us(), times["2 cores"].medians_us(), strict=True)])
    bare = _limits(stage, group)
    note = "; the same loop in plain threads: " + ", ".join(f"{memory} {value:.2f}" for memory, value in bare.items())
    stage.report.judge("duck.multicore.speedup", ratios.value, se=ratios.se, note=group + (note if bare else ""))


def _limits(stage: Stage, group: str) -> dict[str, float]:
    """What two plain threads win over one, by the memory that they read; a row for each number of cores."""
    found, plan = {}, stage.plan
    for memory, what in limit.MEMORIES.items():
        stage.say(f"plain threads, {memory}")
        cores = (stage.cores.client, stage.cores.worker)
        try:
            bare = limit.measure(stage.programs["limit"], memory, plan.weights, COLUMNS, plan.large, cores)
        except LaneError as error:
            stage.report.absent(f"plain threads, {memory}", group, str(error))
            continue
        for count, taken in ((1, bare.one), (2, bare.two)):
            rate = plan.weights / statistics.median(taken)
            stage.report.add(f"plain threads, {memory}, {count}", group, taken, f"{what}; {rate:.1f} GB/s")
        found[memory] = bare.speedup
    return found
