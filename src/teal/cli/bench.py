"""`teal bench`: measurements of this machine, Teal's rivals beside it in the same run."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.group(name="bench")
def command() -> None:
    """Measure Teal on this machine, side by side with its rivals."""


@command.command(name="call")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--quick", is_flag=True, help="Fewer calls: half a minute, wider errors, reloads not judged.")
@click.option(
    "--venv",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The rivals' environment; by default .venv-bench here or beside Teal's (make bench-setup).",
)
def call(as_json: bool, quick: bool, venv: Path | None) -> None:
    """What a call of a resident model costs, around its maths.

    Takes one to two minutes on two cores, which should be quiet. Progress goes to stderr, the result to stdout. The
    result has `machine`, `versions`, `rows` (n, p50, p99, p99.9 in microseconds) and `bars` (what is promised, what
    was found).

    \b
    Examples:
      teal bench call
      teal bench call --quick --json > call.json
    """
    # Imported here: every other command would pay for numpy and rich otherwise.
    from rich.console import Console

    from teal.bench import call as bench
    from teal.bench.lanes import LaneError

    errors = Console(stderr=True)
    try:
        with errors.status("measuring") as status:
            report = bench.measure(quick=quick, venv=venv, progress=lambda what: status.update(f"measuring: {what}"))
    except (LaneError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(report.as_json())
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(report.as_table())


@command.command(name="laika")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--quick", is_flag=True, help="Fewer calls: some seconds, wider errors.")
def laika(as_json: bool, quick: bool) -> None:
    """What it costs to reach a compute device: resident kernels beside launches; and C, BPF and hostile clients.

    Takes six or seven minutes on two cores, which should be quiet. Measures every OpenCL driver here; the form of
    the result is that of `teal bench call`.

    \b
    Examples:
      teal bench laika
      teal bench laika --quick --json > laika.json
    """
    from rich.console import Console

    from teal.bench import laika as bench

    with Console(stderr=True).status("measuring") as status:
        try:
            report = bench.measure(quick=quick, progress=lambda what: status.update(f"measuring: {what}"))
        except RuntimeError as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(report.as_json())
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(report.as_table())


@command.command(name="models")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--quick", is_flag=True, help="Fewer calls: some minutes, wider errors.")
@click.option("--models", "names", metavar="NAME,…", default="", help="Only these [default: all]; --list names them.")
@click.option("--batches", metavar="N,…", default="1", show_default=True, help="Batches, from 1 to 64.")
@click.option("--no-compile", is_flag=True, help="Without torch.compile, whose first call takes up to minutes.")
@click.option("--resume", is_flag=True, help="Take what an interrupted run of today had finished.")
@click.option("--retune", is_flag=True, help="Tune again what was tuned before: it may have been on a busy machine.")
@click.option("--list", "listed", is_flag=True, help="Print the models and end.")
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path),
              help="Folder of the models' files, 3 GB  [default: teal/bench-models in the user's cache].")  # fmt: skip
@click.option("--venv", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The rivals' environment; by default .venv-bench here or beside Teal's.")  # fmt: skip
def models(
    as_json: bool,
    quick: bool,
    names: str,
    batches: str,
    no_compile: bool,
    resume: bool,
    retune: bool,
    listed: bool,
    cache: Path | None,
    venv: Path | None,
) -> None:
    """Ordinary models from another process, beside PyTorch servers, PyTorch, torch.compile, onnxruntime and OpenVINO.

    Takes twenty minutes on two cores, which should be quiet, and longer the first time, when the models are made and
    tuned. The form of the result is that of `teal bench call`. All batches take hours: a model and batch at most some
    four minutes, and --resume goes on with what is left.

    \b
    Examples:
      teal bench models
      teal bench models --batches 1,2,4,8,16,32 --resume --json > models.json
      teal bench models --models mlp,resnet50 --batches 1,8 --json > models.json
    """
    from rich.console import Console

    from teal.bench.lanes import LaneError
    from teal.bench.models import bench
    from teal.bench.rivals import zoo

    if listed:
        for entry in zoo.ENTRIES:
            click.echo(f"{entry.name:16} {entry.title}{f': {entry.note}' if entry.note else ''}")
        return
    chosen = _words(names, "--models", tuple(zoo.ZOO))
    numbers = [int(word) for word in _words(batches, "--batches", tuple(map(str, range(1, 65))))]
    with Console(stderr=True).status("measuring") as status:
        try:
            report = bench.measure(
                models=chosen, batches=numbers, quick=quick, compiled=not no_compile, resume=resume, retune=retune,
                venv=venv, cache=cache, progress=lambda what: status.update(f"measuring: {what}"),
            )  # fmt: skip
        except (LaneError, RuntimeError) as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(report.as_json())
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(report.as_table())


@command.command(name="wave")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--quick", is_flag=True, help="Fewer and shorter blocks: 90 s, wider errors.")
@click.option("--parts", "--part", "parts", metavar="NAME,…", default="",
              help="Only these [default: all]; --list names them.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="Print the parts and end.")
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="Folder for the pictures (SVG).")
@click.option("--foundation", "older", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Environment of an older Teal; by default .venv-foundation here or beside Teal's.")  # fmt: skip
def wave(as_json: bool, quick: bool, parts: str, listed: bool, plots: Path | None, older: Path | None) -> None:
    """Policies off the host's core: what that costs against the same policies in-line, over shared memory and over an
    emulated PCIe link, and what each of the link's tricks is worth.

    Takes 8 minutes on two cores, which should be quiet: the worker has the first, the agent and the load share the
    second. Loads are open: latency counts from the intended arrival. The form of the result is that of `teal bench
    call`. RocksDB needs `pip install 'teal-runtime[bench]'`.

    \b
    Examples:
      teal bench wave --plots docs/img
      teal bench wave --part ablation --plots docs/img
      teal bench wave --quick --parts costs,saturation --json > wave.json
    """
    from rich.console import Console

    from teal.bench.wave import bench

    if listed:
        click.echo("\n".join(bench.PARTS))
        return
    chosen = _words(parts, "--parts", bench.PARTS) or bench.PARTS
    with Console(stderr=True).status("measuring") as status:
        try:
            report = bench.measure(
                quick=quick, parts=chosen, plots=plots, older=older,
                progress=lambda what: status.update(f"measuring: {what}"),
            )  # fmt: skip
        except RuntimeError as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(report.as_json())
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(report.as_table())


@command.command(name="duck")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--quick", is_flag=True, help="Fewer calls: a minute, wider errors.")
@click.option("--parts", "--part", "parts", metavar="NAME,…", default="",
              help="Only these [default: all]; --list names them.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="Print the parts and end.")
@click.option("--venv", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The rivals' environment; by default .venv-bench here or beside Teal's.")  # fmt: skip
def duck(as_json: bool, quick: bool, parts: str, listed: bool, venv: Path | None) -> None:
    """What it costs to call a native program in its sandbox, here and on another machine, beside a bare echo, gRPC and
    Ray; what loading and judging it costs.

    Takes some minutes on two cores, which should be quiet: clients have the first, ducks and their boxes the second.
    Needs a C compiler. The form of the result is that of `teal bench call`.

    \b
    Examples:
      teal bench duck
      teal bench duck --quick --parts calls,idle --json > duck.json
    """
    from rich.console import Console

    from teal.bench.duck import bench
    from teal.bench.lanes import LaneError

    if listed:
        click.echo("\n".join(bench.PARTS))
        return
    chosen = _words(parts, "--parts", bench.PARTS) or bench.PARTS
    with Console(stderr=True).status("measuring") as status:
        try:
            report = bench.measure(
                quick=quick, parts=chosen, venv=venv, progress=lambda what: status.update(f"measuring: {what}")
            )
        except (LaneError, RuntimeError) as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(report.as_json())
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(report.as_table())


def _words(text: str, option: str, known: tuple[str, ...]) -> list[str]:
    """The words of a list with commas. Raises UsageError for one that is not known."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    for word in found:
        if word not in known:
            raise click.UsageError(f"{option}: {word!r}, expected some of {', '.join(known)}")
    return found
