"""`teal infer`: one call of a model, or many of the same with the time they took.

Theory of operation: inputs become arrays (cli/values.py), the model is called once, and with --repeat the same inputs
are called again as a prepared call, which copies nothing. Times are taken in this process around each call; the stages
come from the host's counters, before and after, so they hold whatever others did with the model meanwhile.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from teal.cli import draw, options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from teal.host.host import Host
    from teal.host.model import Model
    from teal.host.outputs import Outputs
    from teal.host.records import Histogram

_SHOWN = 60  # values of an output that are drawn
_STEP_S = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Fill:
    """How inputs without a value are made."""

    how: str | None
    dims: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


@click.command("infer", short_help="Call a model and show its outputs.")
@click.argument("name")
@click.argument("inputs", nargs=-1, metavar="[INPUT=VALUE]...")
@click.option("--version", type=int, metavar="N", help="This version [default: the current one]")
@click.option("--fill", type=click.Choice(["zeros", "ones", "random"]), help="Makes the inputs that have no value.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="A symbolic dimension, for --fill; repeatable.")
@click.option("--shape", "shapes", multiple=True, metavar="INPUT=N,N", help="The shape of an input, for --fill.")
@click.option("--dtype", "dtypes", multiple=True, metavar="INPUT=DTYPE", help="Of an input that takes any; or convert.")
@click.option("--deadline", callback=options.seconds, metavar="TIME", help="Give up after this long, such as 5ms.")
@click.option("--priority", default=0, metavar="N", type=click.IntRange(-(2**31), 2**31 - 1), help="Larger goes first.")
@click.option("--repeat", type=click.IntRange(1, 100_000_000), metavar="N", help="Call N times more and time each.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Save outputs as .npy.")
@click.option("--limit", default=100_000, show_default=True, type=click.IntRange(0), metavar="N",
              help="Most values of an output in --json.")  # fmt: skip
@options.host_option
@options.json_option
def command(
    name: str,
    inputs: tuple[str, ...],
    version: int | None,
    fill: str | None,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    deadline: float | None,
    priority: int,
    repeat: int | None,
    out: Path | None,
    limit: int,
    host: str | None,
    as_json: bool,
) -> None:
    """Call a model and show its outputs.

    VALUE is a JSON number or nested list, the text itself for string inputs, @FILE.npy, @FILE.json, or for string
    inputs any other @FILE. --repeat times the same call N times more, without a copy, from this process.

    \b
    Examples:
      teal infer echo x='[[1, 2], [3, 4]]' --dtype x=float32
      teal infer mlp x=@rows.npy --out answers --deadline 5ms
      teal infer minilm --fill ones --dim batch=1 --dim seq=32 --repeat 1000
    """
    asked = Fill(
        fill,
        {key: _extent(value, "--dim") for key, value in options.pairs(dims, "--dim").items()},
        {key: _shape(value) for key, value in options.pairs(shapes, "--shape").items()},
        options.pairs(dtypes, "--dtype"),
    )
    given = options.pairs(inputs, "INPUT=VALUE")
    with options.reach(host) as reached:
        model = reached.model(name, version)
        arrays = _arrays(model, given, asked)
        outputs = _answer(model, arrays, deadline, priority)
        timing = None
        if repeat is not None:
            with draw.progress(f"calling {model.name} {repeat:,} times", silent=as_json):
                timing, outputs = _timed(reached, model, arrays, repeat, deadline, priority)
        saved = None if out is None else _save(outputs, out)
        if as_json:
            draw.emit(_document(model, outputs, limit, timing, saved))
        else:
            _draw(outputs, timing, saved)


# ---- inputs ----------------------------------------------------------------------------------------------------------


def _extent(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise click.BadParameter(f"{text[:40]!r}, expected a number, 0 or more", param_hint=what)
    return int(text)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(_extent(part.strip(), "--shape") for part in text.split(",") if part.strip())


def _arrays(model: Model, given: Mapping[str, str], fill: Fill) -> dict[str, Any]:
    """The inputs by name. Raises InvalidArgument for what is missing, unknown, or has no effect."""
    from teal.cli import values
    from teal.errors import InvalidArgument

    names = [spec.name for spec in model.inputs]
    for option, used in (("INPUT=VALUE", given), ("--shape", fill.shapes), ("--dtype", fill.dtypes)):
        if unknown := sorted(set(used) - set(names)):
            raise InvalidArgument(f"{option} {', '.join(unknown)}: {model.name!r} has the inputs {names}")
    arrays: dict[str, Any] = {}
    missing = [spec for spec in model.inputs if spec.name not in given and not spec.optional]
    if missing and fill.how is None:
        wanted = " ".join(f"{spec.name}=VALUE" for spec in missing)
        raise InvalidArgument(f"inputs without a value: give {wanted}, or --fill zeros")
    dims_used = {e for spec in missing for e in spec.shape or () if isinstance(e, str)}
    if idle := [f"--dim {key}" for key in fill.dims if key not in dims_used]:
        raise InvalidArgument(f"{', '.join(idle)}: no input to be filled has it; those have {sorted(dims_used)}")
    if idle := [f"--shape {key}" for key in fill.shapes if key in given]:
        raise InvalidArgument(f"{', '.join(idle)}: the input has a value already")
    for spec in model.inputs:
        dtype = fill.dtypes.get(spec.name)
        if spec.name in given:
            arrays[spec.name] = values.read(given[spec.name], spec, dtype)
        elif spec in missing:
            assert fill.how is not None
            shape = values.shape_of(spec, fill.dims, fill.shapes.get(spec.name))
            if (chosen := dtype or spec.dtype) is None:
                raise InvalidArgument(f"it takes any dtype; give --dtype {spec.name}=float32", path=f"$.{spec.name}")
            arrays[spec.name] = values.filled(fill.how, chosen, shape, f"$.{spec.name}")
    return arrays


def _answer(model: Model, arrays: Mapping[str, Any], deadline: float | None, priority: int) -> Outputs:
    """One call that Ctrl-C ends: it waits in small steps, because a wait in the core does not look at signals."""
    from teal.errors import DeadlineExceeded

    future = model.submit(arrays, deadline=deadline, priority=priority)
    while True:
        try:
            return future.result(_STEP_S)
        except DeadlineExceeded:  # a TimeoutError as well
            raise
        except TimeoutError:
            continue
        except KeyboardInterrupt:
            future.cancel()
            raise


# ---- time ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Of ``calls`` prepared calls in a row, after one that is not counted. In microseconds, exact order statistics."""

    calls: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    stages: dict[str, Histogram]


def _timed(
    host: Host, model: Model, arrays: Mapping[str, Any], n: int, deadline: float | None, priority: int
) -> tuple[Timing, Outputs]:
    import numpy as np

    call = model.prepare(arrays, deadline=deadline, priority=priority)
    outputs = call()
    times = np.empty(n, np.int64)
    before = _stages(host, model)
    clock = time.perf_counter_ns
    for i in range(n):
        start = clock()
        outputs = call()
        times[i] = clock() - start
    stages = _histograms(before, _stages(host, model))
    times.sort()
    p50, p99, p999 = (float(times[min(n - 1, int(q * n))]) / 1000 for q in (0.5, 0.99, 0.999))
    return Timing(n, p50, p99, p999, float(times[-1]) / 1000, stages), outputs


def _stages(host: Host, model: Model) -> dict[Any, Any]:
    """Raw histograms: queue and run of every version of the name by line, wake and total of its callers."""
    from teal.host.records import place

    raw = host._raw_statistics()
    seen = raw["callers"].get(place(model.info.pool, model._index), {})
    found: dict[Any, Any] = {(stage, None): seen.get(stage, ()) for stage in ("wake", "total")}
    for m in raw["models"]:
        if m["name"] == model.name and (numbers := raw["versions"].get(place(m["pool"], m["line"]))) is not None:
            found.update({(stage, m["version"]): numbers["stages"][stage] for stage in ("queue", "run")})
    return found


def _histograms(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[str, Histogram]:
    from teal.cli.interval import added
    from teal.host.records import Histogram, merged

    grown: dict[str, list[list[tuple[int, int]]]] = {"queue": [], "run": [], "wake": [], "total": []}
    for (stage, version), buckets in after.items():
        grown[stage].append(added(before.get((stage, version), ()), buckets))
    return {stage: Histogram.of(merged(*lists)) for stage, lists in grown.items()}


# ---- outputs ---------------------------------------------------------------------------------------------------------


def _save(outputs: Outputs, folder: Path) -> list[dict[str, str]]:
    """Writes NAME.npy for each output (BYTES, which .npy cannot hold without pickle: NAME.json)."""
    import numpy as np

    from teal.cli import values
    from teal.errors import InvalidArgument

    saved: list[dict[str, str]] = []
    taken: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for position, (name, tensor) in enumerate(outputs.items()):
            stem = re.sub(r"[^A-Za-z0-9._-]", "_", name).strip(".")[:100] or "output"
            if stem.lower() in taken:
                stem = f"{stem}-{position}"
            taken.add(stem.lower())
            array = tensor.numpy()
            file = folder / f"{stem}.{'json' if tensor.dtype == 'BYTES' else 'npy'}"
            if tensor.dtype == "BYTES":
                file.write_text(json.dumps(values.document(name, "BYTES", array, array.size)))
                dtype = "BYTES"
            else:
                wide = values.widened(array)
                np.save(file, wide, allow_pickle=False)
                dtype = wide.dtype.name
            saved.append({"output": name, "file": str(file), "dtype": dtype})
    except OSError as error:
        raise InvalidArgument(f"{error.filename or folder}: {error.strerror}", path="$.out") from None
    return saved


def _document(
    model: Model, outputs: Outputs, limit: int, timing: Timing | None, saved: list[dict[str, str]] | None
) -> dict[str, Any]:
    from teal.cli import values

    found: dict[str, Any] = {
        "model": model.name,
        "version": model.version,
        "outputs": [values.document(name, t.dtype, t.numpy(), limit) for name, t in outputs.items()],
    }
    if timing is not None:
        found["timing"] = dataclasses.asdict(timing)
    if saved is not None:
        found["saved"] = saved
    return found


def _draw(outputs: Outputs, timing: Timing | None, saved: list[dict[str, str]] | None) -> None:
    console = draw.console()
    for name, tensor in outputs.items():
        click.echo(f"{draw.printable(name)}  {tensor.dtype}{list(tensor.shape)}")
        for line in _text(tensor.numpy(), tensor.dtype).splitlines():
            click.echo(f"  {line}")
    for one in saved or ():
        click.echo(f"saved {one['file']} ({one['dtype']})")
    if timing is None:
        return
    table = draw.table(("", "count", "p50", "p99", "max"), right=("count", "p50", "p99", "max"))
    own = (f"{timing.calls:,}", *(draw.micros(value) for value in (timing.p50_us, timing.p99_us, timing.max_us)))
    draw.row(table, "call", *own)
    for stage, h in timing.stages.items():
        draw.row(table, stage, f"{h.count:,}", *(draw.micros(value) for value in (h.p50_us, h.p99_us, h.max_us)))
    click.echo()
    console.print(table)


def _text(array: npt.NDArray[np.generic], dtype: str) -> str:
    import numpy as np

    if dtype == "BYTES":
        shown = [draw.printable(item.decode("utf-8", "backslashreplace")) for item in array.reshape(-1)[:_SHOWN]]
        more = [f"… {array.size - _SHOWN:,} more"] if array.size > _SHOWN else []
        return "\n".join([*shown, *more])
    return np.array2string(array, threshold=_SHOWN, max_line_width=100, precision=6)
