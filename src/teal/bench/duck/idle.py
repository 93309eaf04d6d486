"""A duck that nobody calls: what it costs, and how long the first call after takes."""

from __future__ import annotations

import time
from contextlib import ExitStack

from teal.bench.lanes import decode, estimate
from teal.bench.report import Promise

from .stage import Stage

PROMISES = {
    "duck.idle.cpu_percent": Promise(1, "lower", "%"),
    "duck.first_after_idle.us": Promise(100, "lower", "µs"),
}
PAUSE_S = 0.5


def measure(stage: Stage) -> None:
    """CPU time of the ducks and their boxes a second after the last call; the first call after a pause."""
    report, plan = stage.report, stage.plan
    with ExitStack() as stack:
        ducks = stage.ducks(stage.cores.worker)
        lane = stage.client(ducks, stack)
        lane.ask("first_after", route="shm", pause=0.0, rounds=100)
        lane.ask("first_after", route="keyed", pause=0.0, rounds=100)
        time.sleep(1.01)
        stage.say("idling")
        spent = ducks.ask("cpu_ns", seconds=plan.quiet_seconds)
        note = "two ducks, their yards and boxes with open sessions, local and remote"
        report.judge("duck.idle.cpu_percent", spent / plan.quiet_seconds / 1e7, note=note)
        for route, name in (("shm", "this machine"), ("keyed", "sealed UDP")):
            stage.say(f"first calls, {name}")
            taken = decode(lane.ask("first_after", route=route, pause=PAUSE_S, rounds=max(10, plan.large)))
            row = report.add(f"first call after {PAUSE_S:g} s, {name}", "idle", taken, "prepared call")
            if route == "shm":
                se = estimate([ns / 1e3 for ns in taken]).se
                report.judge("duck.first_after_idle.us", row.p50_us, se=se, note="this machine")
