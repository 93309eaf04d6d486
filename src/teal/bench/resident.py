"""The systems loads on a device, end to end from Python: a resident kernel called through a host, beside launches.

Four ways of one batch take turns: NumPy in this process; a resident kernel, called directly through a host's session
(the worker sleeps); a launch in place; a launch with copies through device memory, as a discrete card needs them. The
launches are made in this process without a host, which is the least they can cost. The caller has one core, the
device's threads the other.

Break-even is the smallest batch from which on one call of a device is no slower than the CPU that takes the items one
by one, as they come: the core's own kernel, a call through the host for each. (Beside a CPU that is given the same
batch a CPU device, which is the same silicon, shows nothing but the price of the way to it; the rows have that too.)
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from teal import _core, device
from teal.device import MappedRegion, Place, Task
from teal.errors import TealError
from teal.kernel.systems import LOADS, file, reference
from teal.kernel.systems.task import task_of

from . import systems
from .lanes import Times
from .report import Promise, Report, Row

if TYPE_CHECKING:
    from teal.device.protocol import Copying, Device, Program

PROMISES = {
    "laika.breakeven_ratio.mllb": Promise(4, "higher", "×"),  # noqa: RUF001
    "laika.breakeven_ratio.kml": Promise(4, "higher", "×"),  # noqa: RUF001
    # To be kept by at least one of the three.
    "laika.apk.vs_launch_copy.ratio.mllb": Promise(9.7, "higher", "×"),  # noqa: RUF001
    "laika.apk.vs_launch_copy.ratio.kml": Promise(9.7, "higher", "×"),  # noqa: RUF001
    "laika.apk.vs_launch_copy.ratio.linnos": Promise(9.7, "higher", "×"),  # noqa: RUF001
}
MEASURED = ("mllb", "kml", "linnos")
SMALL = (1, 2, 4, 8, 16, 32)
DOUBLES = (*SMALL, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WAYS = ("numpy", "resident", "launch", "launch + copies")
ONE_BY_ONE = "cpu"
_ALIGN = 4096


def numpy_path(load: str, model: bytes, x: systems.Array, n: int) -> Times:
    weights = file.view(model).tensors
    return systems.timed(lambda: reference.REFERENCES[load](weights, x), n)


def launch_path(opened: Device, copying: Copying) -> systems.Sweep:
    """Launches of a device that is open in this process."""
    built: dict[str, Program] = {}

    def run(load: str, model: bytes, x: systems.Array, n: int) -> Times:
        known, task = LOADS[load], task_of(load)
        fd = file.seal(model)
        try:
            _, offset = _core.systems_file(fd)
            weights = opened.hold(MappedRegion(_core.SealedPages(fd), writable=False))
        finally:
            os.close(fd)
        batch = len(x)
        sizes = [x.nbytes, batch * known.classes * np.dtype(known.weights).itemsize, batch * 4]
        starts = [_ALIGN]
        for size in sizes:
            starts.append(-(-(starts[-1] + size) // _ALIGN) * _ALIGN)
        region = MappedRegion.create(starts[-1])
        imported = opened.import_region(region)
        region.array(starts[0], x.shape, x.dtype)[:] = x
        given, scores, verdict = (Place(imported, at, size) for at, size in zip(starts, sizes, strict=False))
        if load not in built:
            built[load] = opened.build(task.source, task.scratch)
        whole = Place(weights, offset, weights.region.nbytes - offset)
        launch = built[load].prepare(Task(whole, given, scores, verdict, batch), copying)
        try:
            return systems.timed(launch.run, n)
        finally:
            del launch
            weights.close()
            imported.close()

    return run


def resident_path(host: Any, name: str) -> systems.Sweep:
    """Prepared calls of a host's model on a resident kernel of device `name`. Raises RuntimeError when most calls did
    not go directly."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    held: dict[bytes, Any] = {}

    def run(load: str, model: bytes, x: systems.Array, n: int) -> Times:
        if model not in held:
            held.clear()
            with TemporaryDirectory() as folder:
                path = Path(folder) / "model.safetensors"
                path.write_bytes(model)
                held[model] = host.load("bench-resident", path, device=name, path="apk")
        loaded = held[model]
        given = loaded.new_inputs(batch=len(x))
        given["x"].numpy()[:] = x
        call = loaded.prepare(**given)
        before = loaded.statistics().paths["direct"]
        times = systems.timed(call, n)
        direct = loaded.statistics().paths["direct"] - before
        if direct < n * 0.9:
            raise RuntimeError(f"{name}, {load}, batch {len(x)}: {direct} of {n} calls went directly")
        return times

    return run


@contextmanager
def ways(name: str, caller: int, other: int) -> Iterator[dict[str, systems.Sweep]]:
    """The four ways on a device; this thread stays on core `caller`. Raises TealError where the device is not here."""
    import teal

    with ExitStack() as stack:
        host = stack.enter_context(teal.Host(cores=[other]))
        opened = stack.enter_context(device.open(name, cores={other}))
        before = os.sched_getaffinity(0)
        stack.callback(os.sched_setaffinity, 0, before)
        os.sched_setaffinity(0, {caller})
        yield {
            ONE_BY_ONE: systems.call_path(host),
            "numpy": numpy_path,
            "resident": resident_path(host, name),
            "launch": launch_path(opened, "none"),
            "launch + copies": launch_path(opened, "copies"),
        }


def measure(
    report: Report,
    runtimes: Sequence[str],
    cores: tuple[int, int],
    *,
    seconds: float = 0.1,
    batches: Sequence[int] = DOUBLES,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Adds rows of these OpenCL runtimes, and bars; `report` has PROMISES. cores: the caller's, the device's."""
    found: dict[str, list[Row]] = {}
    for runtime in runtimes:
        name = f"opencl:{runtime}"
        try:
            with ways(name, *cores) as every:
                one = {ONE_BY_ONE: every.pop(ONE_BY_ONE)}
                rows = []
                for load in MEASURED:
                    rows += systems.sweep(load, one, batches=(1,), seconds=seconds, say=say)
                    rows += systems.sweep(load, every, batches=batches, seconds=seconds, say=say)
        except TealError as error:
            report.absent(f"{name} resident loads", name, str(error).splitlines()[0])
            continue
        report.rows += [replace(row, group=name) for row in rows]
        found[runtime] = rows
    judge(report, found)


def judge(report: Report, found: Mapping[str, Sequence[Row]]) -> None:
    """Bars: of the runtime that does worse; all numbers in the notes."""
    for load in ("mllb", "kml"):
        ratios = {}
        for runtime, rows in found.items():
            times = {way: systems.medians(rows, load, way) for way in WAYS}
            (single,) = systems.medians(rows, load, ONE_BY_ONE).values()
            cpu = {batch: batch * single for batch in times["launch"]}
            first = {way: systems.break_even(cpu, times[way]) for way in ("resident", "launch")}
            if first["resident"] is not None and first["launch"] is not None:
                ratios[runtime] = (first["launch"] / first["resident"], first["resident"], first["launch"])
        if ratios:
            worst = min(ratios.values())
            notes = [f"{runtime}: resident from {a}, launch from {b}" for runtime, (_, a, b) in ratios.items()]
            report.judge(f"laika.breakeven_ratio.{load}", worst[0], note="; ".join(notes))
    for load in MEASURED:
        middle, notes = [], []
        for runtime, rows in found.items():
            times = {way: systems.medians(rows, load, way) for way in WAYS}
            share = {b: times["launch + copies"][b] / times["resident"][b] for b in SMALL if b in times["resident"]}
            if share:
                middle.append(statistics.median(share.values()))
                notes.append(f"{runtime}: " + ", ".join(f"{b}: {ratio:.1f}" for b, ratio in share.items()))
        if middle:
            note = "median over batches 1 to 32, the runtime that does worse; by batch: " + "; ".join(notes)
            report.judge(f"laika.apk.vs_launch_copy.ratio.{load}", min(middle), note=note)
