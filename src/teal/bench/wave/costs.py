"""What the pieces of off-loading cost, between two cores, in the core's own code (core/bench/seat_costs.hpp).

The worker's side on one core and the agent's on another use the regions and functions that worker and agent use; there
is no pool and no kernel. Times are taken with a fenced clock and what that takes is taken off. The hardware's floor
beside a cold pick is one exchange on a line that the other core has just written.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from teal import link
from teal.bench.core import core
from teal.bench.report import Promise, Row

from . import seating
from .stage import Stage

PROMISES = {
    "wave.staged_pick.p50_ns.cold": Promise(120, "lower", "ns"),
    "wave.staged_pick.p50_ns.prefetched": Promise(30, "lower", "ns"),
    "wave.unstaged.roundtrip.p50_us": Promise(1, "lower", "µs"),
    "wave.message.host_cost_ns": Promise(60, "lower", "ns"),
    "wave.policy.events_per_s.python": Promise(100_000, "higher", "events/s"),
    "wave.policy.events_per_s.cpp": Promise(2_000_000, "higher", "events/s"),
}
ROWS = {
    "line": "an exchange on a line that the other core has just written: the hardware's floor",
    "cold": "a pre-staged decision, read, claimed and checked; its slot was just written by the agent's core",
    "prefetched": "the same, asked for a microsecond earlier",
    "commit": "after a claim: outcome and status words",
    "messages": "the end of a request and one that may run, status words included, made visible: two messages",
    "roundtrip": "nothing staged: from telling of a request until the decision is claimed; FIFO in the agent's loop",
}
GROUP = "costs, shm"


def without_clock(samples: Sequence[int], clock: float) -> list[int]:
    return [max(0, round(each - clock)) for each in samples]


def delays(stage: Stage) -> None:
    """What each access over the emulated links was asked to take, and took here."""
    for kind in ("pcie", "cxl"):
        for delay in link.measure(kind, stage.plan.tries // 10):
            delivered = f"delivered: p50 {delay.p50_ns}, p99 {delay.p99_ns}, least {delay.least_ns} ns"
            note = f"asked: {delay.asked_ns} ns; {delivered}"
            row = Row(delay.name, f"delays, {kind}", delay.n, delay.p50_ns / 1e3, delay.p99_ns / 1e3, None, note)
            stage.report.rows.append(row)


def measure(stage: Stage) -> None:
    stage.say("costs of a seat")
    found = core("teal").measure_seat(stage.plan.tries, stage.cores.host, stage.cores.agent)
    clock = statistics.median(found["clock"])
    median: dict[str, float] = {}
    middle: dict[str, float] = {}  # mean of the middle half: finer than a clock that ticks every 10 ns
    for name, note in ROWS.items():
        samples = without_clock(found[name], clock)
        stage.report.add(name, GROUP, samples, f"{note}; the clock's {clock:.0f} ns taken off")
        median[name] = statistics.median(samples)
        middle[name] = statistics.fmean(sorted(samples)[len(samples) // 4 : -(len(samples) // 4) or None])
    judge = stage.report.judge
    mean = "mean of the middle half"
    floor = f"the line alone takes {median['line']:.0f} ns; {mean} {middle['cold']:.0f} ns"
    judge("wave.staged_pick.p50_ns.cold", median["cold"], note=floor)
    ahead = f"prefetch() a microsecond earlier; {mean} {middle['prefetched']:.0f} ns"
    judge("wave.staged_pick.p50_ns.prefetched", median["prefetched"], note=ahead)
    judge("wave.unstaged.roundtrip.p50_us", median["roundtrip"] / 1e3, note="two trips between the cores and FIFO")
    told = f"{mean} of an end and a new request told together, halved"
    judge("wave.message.host_cost_ns", middle["messages"] / 2, note=told)
    delays(stage)
    for language, bar in (("C++", "wave.policy.events_per_s.cpp"), ("Python", "wave.policy.events_per_s.python")):
        stage.say(f"events of a policy in {language}")
        rate = core("teal").measure_events(
            seating.policy("fifo", python=language == "Python"),
            stage.plan.events_seconds,
            stage.cores.host,
            stage.cores.agent,
        )
        events, decisions, seconds = rate
        note = f"FIFO in {language}, 64 workers, {decisions / seconds:,.0f} decisions/s with them"
        judge(bar, events / seconds, note=note)
