"""`teal tune`: what a call of a systems load costs on the CPU and on a device, by batch; kept for ``path="auto"``.

Theory of operation: a host of our own loads the file once for each path and calls it as any client would, so the
numbers are what callers see. Batches double until one path has been clearly ahead for a while.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from teal.cli import draw, options

if TYPE_CHECKING:
    from teal.host.model import Model
    from teal.kernel.cost import Costs

PATHS = ("cpu", "pl", "apk")
_CLEARLY, _STEADY = 3.0, 3  # times ahead, in so many batches running
_LARGEST = 4096


@click.command("tune", short_help="Measure where a systems load runs best, by batch.")
@click.argument("model")
@click.option("--device", metavar="NAME", help="opencl, opencl:pocl, cuda … [default: the loaded model's, else opencl]")
@click.option("--time", "seconds", default="50ms", show_default=True, callback=options.seconds, metavar="TIME",
              help="For each path and batch.")  # fmt: skip
@click.option("--largest", type=click.IntRange(1, 1 << 16), default=_LARGEST, show_default=True, metavar="N",
              help="Largest batch.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Measure and print; keep nothing.")
@options.host_option
@options.json_option
def command(
    model: str, device: str | None, seconds: float, largest: int, dry_run: bool, host: str | None, as_json: bool
) -> None:
    """Measure what calls of a systems load cost by each path (cpu, pl: a launch each, apk: a resident kernel), by
    batch, and keep it for this machine and device. Loads with path auto use it from then on.

    MODEL is a .safetensors file, or the name of a model of a running host.

    \b
    Examples:
      teal tune mllb.safetensors --device opencl:pocl
      teal tune mllb --json
    """
    from teal.kernel import cost
    from teal.kernel.systems.file import view
    from teal.kernel.systems.task import task_of

    source, device = (model, device or "opencl") if model.endswith(".safetensors") else _loaded(model, device, host)
    load = view(source).load
    opened, costs = measured(source, device, seconds, largest, silent=as_json)
    kept = None if dry_run else cost.write(opened, task_of(load.name), costs)
    breakeven = {path: costs.breakeven(path) for path in ("pl", "apk")}
    if as_json:
        draw.emit(
            {"load": load.name, "device": opened, "us": costs.table, "breakeven": breakeven, "file": kept and str(kept)}
        )
        return
    table = draw.table(("batch", *PATHS, "best"), right=("batch", *PATHS))
    for batch, row in costs.table.items():
        cells = [draw.micros(row[path]) if path in row else "-" for path in PATHS]
        draw.row(table, f"{batch}", *cells, costs.best(batch) or "-")
    draw.console().print(table)
    for path, first in breakeven.items():
        said = "at none of these batches" if first is None else f"from batch {first}"
        click.echo(f"{load.name} on {opened}: {path} costs no more than the CPU {said}")
    click.echo("nothing was kept" if kept is None else f"kept in {kept}")


def _loaded(name: str, device: str | None, host: str | None) -> tuple[str, str]:
    from teal.errors import InvalidArgument, NotFound

    with options.reach(host) as reached:
        found = [m for m in reached.models() if m.name == name and m.current]
    if not found:
        raise NotFound(f"model {name!r} is not loaded; give the name of a loaded one, or a .safetensors file")
    if found[0].kernel != "systems":
        raise InvalidArgument(f"{name!r} is of kind {found[0].kernel}, expected a systems load (.safetensors)")
    return found[0].source, device or found[0].device or "opencl"


def measured(source: str, device: str, seconds: float, largest: int, *, silent: bool = True) -> tuple[str, Costs]:
    """The device's own name, and the costs. Raises what loading onto the device raises."""
    import teal
    from teal import device as devices
    from teal.kernel.cost import Costs

    with devices.open(device) as opened:
        name, live = opened.name, opened.capabilities.live
    paths = PATHS if live else PATHS[:2]
    table: dict[int, dict[str, float]] = {}
    steady, batch, leader = 0, 1, ""
    with teal.Host() as host, draw.progress(f"measuring {draw.printable(source)[:80]} on {name}", silent=silent):
        models = {path: host.load(f"tune-{path}", source, device=device, path=path) for path in paths}
        while batch <= largest and steady < _STEADY:
            row = table[batch] = {path: p50_us(models[path], batch, seconds) for path in paths}
            order = sorted(row, key=lambda path: row[path])
            ahead = row[order[1]] >= _CLEARLY * row[order[0]] and order[0] == leader
            steady, leader = steady + 1 if ahead else 0, order[0]
            batch *= 2
    return name, Costs(table)


def p50_us(model: Model, batch: int, seconds: float) -> float:
    """Median of prepared calls."""
    import numpy as np

    inputs = model.new_inputs(batch=batch)
    for tensor in inputs.values():
        np.asarray(tensor)[:] = 1
    call = model.prepare(**inputs)
    for _ in range(3):
        call()
    took: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(took) < 5:
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return float(np.median(took)) * 1e6
