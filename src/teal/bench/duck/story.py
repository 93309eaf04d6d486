"""The story of JudgeDuck's launcher: what a call cost when it was a judge, and what each change took away.

The same GEMV over the same 4 MiB of weights in every row. The first row does what the judge did for every run: a
process made anew, the program loaded into it, the weights copied in, the caches flushed on the way back, and both ends
asleep for a millisecond at a time while nothing happens. Each row after it has one more of these gone. The numbers are
of this machine and this program; what the judge itself reached is in docs/ducks.md.
"""

from __future__ import annotations

from contextlib import ExitStack

from teal.bench.lanes import Times, decode, estimate
from teal.bench.report import Promise

from .stage import Stage

PROMISES = {"duck.story.total_ratio": Promise(10, "higher", "×")}  # noqa: RUF001
WEIGHTS, COLUMNS = 4 << 20, 1024
# What each row still does of the old ways: see client.Story.
ROWS = {
    "as a judge did it": ("process", "copy", "flush", "sleep"),
    "+ the program stays": ("copy", "flush", "sleep"),
    "+ weights mapped, not copied": ("flush", "sleep"),
    "+ no cache flush": ("sleep",),
    "+ polling, no 1 ms sleeps": (),
}


def measure(stage: Stage) -> None:
    """All rows in turn, block by block."""
    group, plan = f"GEMV over {WEIGHTS >> 20} MiB, step by step", stage.plan
    times = {row: Times() for row in ROWS}
    with ExitStack() as stack:
        lane = stage.client(stage.ducks(stage.cores.worker), stack)
        for block in range(plan.blocks):
            stage.say(f"block {block + 1} of {plan.blocks}")
            for row, ways in ROWS.items():
                found = lane.ask("story", ways=list(ways), nbytes=WEIGHTS, columns=COLUMNS, calls=5)
                times[row].blocks.append(decode(found))
    before = None
    for row, measured in times.items():
        median = estimate(measured.medians_us()).value
        note = "" if before is None else f"{before / median:.2f} times as fast as the row before"
        stage.report.add(row, group, measured.all(), note)
        before = median
    first, *_, last = (times[row].medians_us() for row in ROWS)
    ratio = estimate([a / b for a, b in zip(first, last, strict=True)])
    stage.report.judge("duck.story.total_ratio", ratio.value, se=ratio.se, note="first row over last")
