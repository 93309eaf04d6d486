"""`teal tune`: how a model or a systems load runs fastest here; kept for loads that leave it open.

Theory of operation: models are in `tune_model`. For a systems load a host of our own loads the file once for each path
and calls it as any client would, so the numbers are what callers see. Batches double until one path has been clearly
ahead for a while.
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
_MODELS = (".onnx", ".pt2")


@click.command("tune", short_help="Find how a model runs fastest on this machine, and keep it.")
@click.argument("model")
@click.option("--max-error", type=click.FloatRange(0, 1), metavar="E",
              help="Relative L2 error against float32 that is allowed  [default: 0.02].")  # fmt: skip
@click.option("--inputs", metavar="PATH", help="Real inputs: a file.npz, or a folder of them  [default: random ones].")
@click.option("--calibration", metavar="PATH", help="Inputs from which int8 takes its ranges, as --inputs.")
@click.option("--engines", metavar="NAME,…", help="onnx, openvino; torch for a .pt2  [default: all installed].")
@click.option("--batches", metavar="N,…", help="Batches it shall be fast at  [default: 1].")
@click.option("--threads", metavar="N,…", help="Numbers of threads to try  [default: 1 and all cores].")
@click.option(
    "--dim", "dims", multiple=True, metavar="NAME=N", help="Extent of a symbolic dimension, for random inputs."
)
@click.option("--device", metavar="NAME", help="Systems load: opencl, opencl:pocl, cuda …  [default: opencl].")
@click.option("--largest", type=click.IntRange(1, 1 << 16), metavar="N",
              help=f"Systems load: largest batch  [default: {_LARGEST}].")  # fmt: skip
@click.option("--time", "seconds", callback=options.seconds, metavar="TIME",
              help="For each setting and batch  [default: 500ms; systems load 50ms].")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Measure and print; keep nothing.")
@options.host_option
@options.json_option
def command(
    model: str,
    max_error: float | None,
    inputs: str | None,
    calibration: str | None,
    engines: str | None,
    batches: str | None,
    threads: str | None,
    dims: tuple[str, ...],
    device: str | None,
    largest: int | None,
    seconds: float | None,
    dry_run: bool,
    host: str | None,
    as_json: bool,
) -> None:
    """Measure how a model runs fastest on this machine, and keep it with the model: loads that leave engine, precision
    and threads open use it from then on.

    MODEL is an .onnx or .pt2 file: engines, precisions and threads are tried within --max-error of float32. Or a
    .safetensors systems load: where it runs best (cpu, pl: a launch each, apk: a resident kernel), by batch, for loads
    with path auto. Or the name of a model of a running host.

    \b
    Examples:
      teal tune model.onnx --inputs samples.npz
      teal tune model.onnx --calibration samples/ --max-error 5e-2 --batches 1,8 --json
      teal tune mllb.safetensors --device opencl:pocl
    """
    of_model = {"--max-error": max_error, "--inputs": inputs, "--calibration": calibration, "--engines": engines,
                "--batches": batches, "--threads": threads, "--dim": dims or None}  # fmt: skip
    of_systems = {"--device": device, "--largest": largest}
    source = model
    if not model.endswith((".safetensors", *_MODELS)):
        source, loaded_on = _loaded(model, host)
        device = device or loaded_on
    systems = source.endswith(".safetensors")
    for option, value in (of_model if systems else of_systems).items():
        if value is not None:
            kind = "a systems load" if systems else f"a model ({', '.join(_MODELS)})"
            raise click.UsageError(f"{option} does not go with {kind}")
    if systems:
        _systems(source, device or "opencl", seconds or 0.05, largest or _LARGEST, dry_run=dry_run, as_json=as_json)
        return
    from teal.cli import tune_model

    tune_model.run(source, max_error, inputs, calibration, engines, batches, threads, dims, seconds, dry_run=dry_run,
                   as_json=as_json)  # fmt: skip


def _systems(source: str, device: str, seconds: float, largest: int, *, dry_run: bool, as_json: bool) -> None:
    from teal.kernel import cost
    from teal.kernel.systems.file import view
    from teal.kernel.systems.task import task_of

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


def _loaded(name: str, host: str | None) -> tuple[str, str | None]:
    """File and device of a loaded model. Raises NotFound, InvalidArgument."""
    from teal.errors import InvalidArgument, NotFound

    with options.reach(host) as reached:
        found = [m for m in reached.models() if m.name == name and m.current]
    if not found:
        raise NotFound(f"model {name!r} is not loaded; give the name of a loaded one, or a file")
    if not found[0].source.endswith((".safetensors", *_MODELS)):
        raise InvalidArgument(f"{name!r} is of kind {found[0].kernel}, expected one that comes from a file")
    return found[0].source, found[0].device


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
