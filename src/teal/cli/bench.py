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
