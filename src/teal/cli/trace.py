"""`teal trace`: what a pool did for a while, as a file that Perfetto opens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from teal.cli import draw, options


@click.command("trace", short_help="Record what a pool does, for Perfetto.")
@click.argument("pool", default="default")
@click.option("--seconds", callback=options.seconds, default="1s", show_default=True, metavar="TIME", help="How long.")
@click.option("-o", "--output", default="trace.json", show_default=True, metavar="FILE", help="Where it goes.")
@click.option("--events", default=1 << 18, show_default=True, metavar="N", help="Most events; the rest is counted.")
@options.host_option
@options.json_option
def command(pool: str, seconds: float, output: str, events: int, host: str | None, as_json: bool) -> None:
    """Record what happens in a pool: runs on each worker, decisions, preemptions, refusals.

    The file is in Chrome's trace format: open it at https://ui.perfetto.dev or in chrome://tracing. While nobody
    records, it costs nothing.

    \b
    Example: teal trace default --seconds 1s -o out.json
    """
    from teal.host.trace_file import document

    folder = Path(output).parent
    if Path(output).is_dir() or not os.access(folder, os.W_OK):  # before it takes its time
        raise click.BadParameter(f"{output!r}: {folder} is no folder that can be written to, or has one of that name",
                                 param_hint="--output")  # fmt: skip
    with options.reach(host) as reached, draw.progress(f"recording {seconds:g} s", silent=as_json):
        raw = reached._trace(pool, seconds, events)
    made = document(raw)
    Path(output).write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
    found = {
        "file": output,
        "pool": pool,
        "events": len(raw["events"]),
        "left_out": raw["left_out"],
        "seconds": seconds,
    }
    if as_json:
        draw.emit(found)
        return
    click.echo(f"{output}: {found['events']:,} events of {seconds:g} s; open it at https://ui.perfetto.dev")
    if raw["left_out"]:
        click.echo(f"{raw['left_out']:,} more found no room; raise --events")
