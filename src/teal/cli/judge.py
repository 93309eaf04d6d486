"""`teal judge`: one run of a program from zero, and its record."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from typing import Any

import click

from teal.cli import draw, duck_options, options

PAGE_FAULT = 14


@click.command("judge", short_help="Run a program once under limits, and say how it ran.")
@click.argument("program", type=click.Path(exists=True, dir_okay=False))
@click.option("--time", "limit", default="1s", show_default=True, metavar="TIME", help="CPU time.")
@click.option("--memory", default="256M", show_default=True, callback=options.nbytes, metavar="SIZE", help="Memory.")
@click.option("--output", default="16M", show_default=True, callback=options.nbytes, metavar="SIZE",
              help="Of stdout and of stderr; what is beyond is cut off.")  # fmt: skip
@click.option("--stdin", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="[default: empty]")
@click.option("--abi", type=click.Choice(["linux", "duckinfo"]), default="linux", show_default=True)
@click.option("--runs", default=1, show_default=True, type=click.IntRange(1, 100_000), metavar="N",
              help="So often, and the spread of the times.")  # fmt: skip
@duck_options.duck_options
@options.json_option
def command(
    program: str,
    limit: str,
    memory: int,
    output: int,
    stdin: str | None,
    abi: str,
    runs: int,
    duck: str | None,
    key_file: str | None,
    tcp: bool,
    as_json: bool,
) -> None:
    """Run PROGRAM once, from zero and under limits, and print the record: status, times, memory, how it ended.

    Without --duck, and when none of yours runs here, a duck is made for it. Exit status 0 when the run finished.

    \b
    Examples:
      teal judge prog.elf --time 1s --memory 256M --stdin tests/1.in --json
      teal judge prog.elf --runs 200
    """
    from teal.duck.server import Server
    from teal.errors import NotFound

    with ExitStack() as stack:
        try:
            reached = stack.enter_context(duck_options.reach(duck, key_file, tcp))
        except NotFound:
            if duck is not None:
                raise
            reached = stack.enter_context(stack.enter_context(Server(None)).connect())
        asked: dict[str, Any] = {"stdin": stdin, "time": limit, "memory": memory, "output": output, "abi": abi}
        records = [reached.judge(program, **asked) for _ in range(runs)]
    record = records[-1]
    for name in ("stdout", "stderr"):
        record[name] = record[name].decode("utf-8", "replace")
    times = sorted(one["time-ns"] for one in records)
    spread = {"runs": runs, "min_ns": times[0], "p50_ns": times[runs // 2], "max_ns": times[-1]}
    if as_json:
        draw.emit({**record, "spread": spread})
    else:
        _draw(record, spread)
    sys.exit(0 if record["status"] == "Run Finished" else 1)


def ended(record: dict[str, Any]) -> str:
    """The status, with what is known of why."""
    why = draw.printable(record["reason"])
    if not why and record["status"] == "Runtime Error" and record["signal"]:
        name = next((one.name for one in signal.Signals if one == record["signal"]), f"signal {record['signal']}")
        why = f"{name} at {record['trap-epc']:#x}"
        if record["trap-num"] == PAGE_FAULT:
            why += f", which used address {record['trap-cr2']:#x}"
    return f"{record['status']}{': ' + why if why else ''}"


def _draw(record: dict[str, Any], spread: dict[str, int]) -> None:
    click.echo(ended(record))
    for name, value in record.items():
        if name not in ("status", "reason", "stdout", "stderr"):
            click.echo(f"  {name:22} {value}")
    if spread["runs"] > 1:
        click.echo("  " + ", ".join(f"{name} {value}" for name, value in spread.items()))
    for name in ("stdout", "stderr"):
        if record[name]:
            click.echo(f"{name}:\n{record[name]}", nl=not record[name].endswith("\n"))
