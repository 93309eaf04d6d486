"""What a client that fills its quota costs another one: bar `laika.hostile.p99_ratio`.

One worker; victim and flooder each within their quotas, both calling the small perceptron. The flooder has hundreds of
requests wait behind an event, lets them all go at once and says so (`flood.py`); then the victim makes its calls, so
few that the flood outlasts them. As many calls without a flood take turns with these. Nothing but the worker is shared:
with two cores a third process that computes would be a test of the system's scheduler, so the flooder sleeps while its
requests run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable

import numpy as np

import teal

from . import models
from .energy import Meter
from .lanes import Times
from .machine import Cores
from .report import Promise, Report, percentile

BAR = "laika.hostile.p99_ratio"
PROMISES = {BAR: Promise(2, "lower", "×")}  # noqa: RUF001
GROUP = "a client beside one that fills its quota"
REQUESTS = 512
WARM_UP = 20
CALLS = 280


def measure(report: Report, cores: Cores, *, blocks: int = 20) -> None:
    """Adds the rows and judges the bar. Raises TealError where Teal does not start."""
    before = os.sched_getaffinity(0)
    alone, beside = Times(), Times()
    left = []  # of the flood, after the victim's last call
    meter = Meter()
    with teal.Host(cores=[cores.worker]) as host:
        model = host.load("mlp", models.mlp(), threads=1)
        given = model.new_inputs(batch=1)
        given["x"].numpy()[:] = 0
        call = model.prepare(**given)
        command = [sys.executable, "-m", "teal.bench.flood", host.address, "mlp", str(REQUESTS), str(cores.client)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as flooder:
            assert flooder.stdin is not None
            os.sched_setaffinity(0, {cores.client})
            try:
                for _ in range(blocks):
                    meter.start([os.getpid()])
                    alone.blocks.append(_calls(call))
                    alone.spent(CALLS, meter.stop())
                    _tell(flooder, "filled")
                    meter.start([os.getpid()])
                    _tell(flooder, "let go")
                    beside.blocks.append(_calls(call))
                    beside.spent(CALLS, meter.stop())
                    left.append(int(_tell(flooder)))
                    _hear(flooder, "drained")
            finally:
                os.sched_setaffinity(0, before)
                flooder.stdin.close()
    _judge(report, alone, beside, left)


def _tell(flooder: subprocess.Popen[str], answer: str | None = None) -> str:
    """Gives it a line, and returns what it answers, which has to be `answer`."""
    print(file=flooder.stdin, flush=True)
    return _hear(flooder, answer)


def _hear(flooder: subprocess.Popen[str], answer: str | None) -> str:
    assert flooder.stdout is not None
    said = flooder.stdout.readline().strip()
    if not said or (answer is not None and said != answer):
        raise RuntimeError(f"the flooding client said {said!r}, expected {answer or 'how many still wait'!r}")
    return said


def _calls(call: Callable[[], object]) -> array[int]:
    clock, samples = time.perf_counter_ns, array("q")
    for _ in range(WARM_UP):  # the victim has slept while it waited for the flooder
        call()
    for _ in range(CALLS):
        start = clock()
        call()
        samples.append(clock() - start)
    return samples


def _judge(report: Report, alone: Times, beside: Times, left: list[int]) -> None:
    flood = f"; {REQUESTS} requests flood, and count in its CPU time"
    for name, times in (("alone", alone), ("flooded", beside)):
        report.add_times(f"victim {name}", GROUP, times, "MLP 64-64-8, prepared" + flood * (name == "flooded"))
    note = (
        f"over {len(left) - 1} pairs of blocks of {CALLS} calls, after which {int(np.median(left))} of the other's "
        f"{REQUESTS} still waited"
    )
    # Not the first pair: the other's slots are prepared in that one.
    quiet, loud = (sorted(x for block in times.blocks[1:] for x in block) for times in (alone, beside))
    a, b = percentile(quiet, 0.99), percentile(loud, 0.99)
    report.judge(BAR, b / a if a and b and np.median(left) > 0 else None, note=note)
