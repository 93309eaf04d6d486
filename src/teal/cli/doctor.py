"""`teal doctor`: what this machine gives to Teal, and the commands that make it give more.

Draws what `teal.host.doctor` found. Ends with status 1 when something FAILs, so that scripts can rely on it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.padding import Padding
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from teal.host import doctor
from teal.host.doctor import Check, Status

_COLOURS = {Status.PASS: "green", Status.CAUTION: "yellow", Status.FAIL: "bold red"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--quick", is_flag=True, help="Leave out the jitter measurement, which takes a second.")
@click.pass_context
def command(context: click.Context, as_json: bool, quick: bool) -> None:
    """Check this machine: PASS, CAUTION or FAIL, why, and the command that fixes it.

    Nothing is changed. The exit status is 1 when a check FAILs, else 0.

    \b
    Example:
      teal doctor
      teal doctor --quick --json | jq '.checks[] | select(.fix)'
    """
    with _progress(silent=as_json or quick) as show:
        checks = doctor.examine(quick=quick, progress=show)
    if as_json:
        click.echo(json.dumps(_document(checks), indent=2))
    else:
        _draw(checks)
    context.exit(1 if doctor.worst(checks) is Status.FAIL else 0)


def _document(checks: tuple[Check, ...]) -> dict[str, object]:
    return {
        "status": doctor.worst(checks),
        "counts": _counts(checks),
        "checks": [dataclasses.asdict(check) for check in checks],
    }


def _counts(checks: tuple[Check, ...]) -> dict[str, int]:
    return {status.value: sum(check.status is status for check in checks) for status in Status}


@contextmanager
def _progress(*, silent: bool) -> Iterator[doctor.Progress]:
    """Says on stderr what is being measured; a spinner on a terminal, a line elsewhere."""
    console = Console(stderr=True)
    if silent:
        yield lambda _: None
    elif not console.is_terminal or len(os.sched_getaffinity(0)) < 2:  # on one core, drawing would be the jitter
        yield lambda what: console.print(f"measuring: {what}", highlight=False)
    else:
        columns = (SpinnerColumn(), TextColumn("measuring: {task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, refresh_per_second=5) as progress:
            yield lambda what: progress.update(progress.add_task(what, total=None))


def _draw(checks: tuple[Check, ...]) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "check", "found"):
        table.add_column(title, overflow="fold")
    for check in checks:
        table.add_row(Text(check.status, _COLOURS[check.status]), check.name, Text(check.found))
    console.print(table)
    for check in checks:
        if check.status is not Status.PASS:
            console.print()
            console.print(Text.assemble((check.status, _COLOURS[check.status]), " ", (check.name, "bold")))
            console.print(Padding(Text(check.why), (0, 0, 0, 2)))
            # Written past the console's wrapping, so that it can be copied as it stands.
            click.echo(f"  $ {check.fix}" if check.fix else "  no command fixes this")
    console.print()
    console.print(", ".join(f"{count} {status}" for status, count in _counts(checks).items()), highlight=False)
