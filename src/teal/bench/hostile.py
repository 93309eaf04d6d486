"""What a client that fills its quota costs another one: bar `laika.hostile.p99_ratio`.

One worker; victim and flooder each within their quotas, both calling the small perceptron. The flooder has hundreds of
requests wait behind an event and lets them all go at once (`flood.py`); from that moment the victim makes its calls,
until the flood has drained. Blocks with and without a flood take turns. Nothing but the worker is shared: with two
cores a third process that computes would be a test of the system's scheduler, so the flooder sleeps while its requests
run.
"""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import time
from array import array
from typing import IO

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
MOST_CALLS = 2000


def measure(report: Report, cores: Cores, *, blocks: int = 20) -> None:
    """Adds the rows and judges the bar. Raises TealError where Teal does not start."""
    before = os.sched_getaffinity(0)
    alone, beside = Times(), Times()
    shares = []
    meter = Meter()
    with teal.Host(cores=[cores.worker]) as host:
        model = host.load("mlp", models.mlp(), threads=1)
        given = model.new_inputs(batch=1)
        given["x"].numpy()[:] = 0
        call = model.prepare(**given)
        command = [sys.executable, "-m", "teal.bench.flood", host.address, "mlp", str(REQUESTS), str(cores.client)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flooder:
            assert flooder.stdin is not None
            assert flooder.stdout is not None
            os.sched_setaffinity(0, {cores.client})
            try:
                for _ in range(blocks):
                    meter.start([os.getpid()])
                    alone.blocks.append(_calls(call, None, 500))
                    alone.spent(500, meter.stop())
                    _tell(flooder.stdin)
                    if flooder.stdout.readline() != b"filled\n":
                        raise RuntimeError("the flooding client ended")
                    meter.start([os.getpid()])
                    _tell(flooder.stdin)
                    samples = _calls(call, flooder.stdout, MOST_CALLS)
                    beside.spent(len(samples), meter.stop())
                    beside.blocks.append(samples)
                    shares.append(len(samples))
                    if flooder.stdout.readline() != b"drained\n":
                        raise RuntimeError("the flooding client ended")
            finally:
                os.sched_setaffinity(0, before)
                flooder.stdin.close()
    _judge(report, alone, beside, shares)


def _tell(stream: IO[bytes]) -> None:
    stream.write(b"\n")
    stream.flush()


def _calls(call: object, until: IO[bytes] | None, most: int) -> array[int]:
    """Times of calls until something can be read, or as many as `most`."""
    assert callable(call)
    clock, samples = time.perf_counter_ns, array("q")
    while len(samples) < most:
        for _ in range(20):
            start = clock()
            call()
            samples.append(clock() - start)
        if until is not None and select.select([until], [], [], 0)[0]:
            break
    return samples


def _judge(report: Report, alone: Times, beside: Times, shares: list[int]) -> None:
    flood = f"; {REQUESTS} requests flood, and count in its CPU time"
    for name, times in (("alone", alone), ("flooded", beside)):
        report.add_times(f"victim {name}", GROUP, times, "MLP 64-64-8, prepared" + flood * (name == "flooded"))
    ratios = []
    for quiet, loud in zip(alone.blocks, beside.blocks, strict=True):
        a, b = percentile(sorted(quiet), 0.99), percentile(sorted(loud), 0.99)
        if a and b:
            ratios.append(b / a)
    calls = int(np.median(shares))
    note = f"median over {len(ratios)} pairs of blocks; {calls} calls of the victim while {REQUESTS} of the other ran"
    if not ratios:
        report.judge(BAR, None, note="too few calls while the flood ran")
        return
    report.judge(BAR, statistics.median(ratios), note=note)
