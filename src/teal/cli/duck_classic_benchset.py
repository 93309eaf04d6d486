"""`teal duck classic benchset`: the reference's set of small programs, ten times each, and how the times spread."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict

import click

from teal.cli import draw, options


@click.command("benchset", short_help="Loops, memory of each size, sorts, flushes, 100,000 page faults: times, spread.")
@click.option("--host", metavar="HOST:PORT", help="A duck of the classic protocol [default: one is made here]")
@click.option("--repeats", default=10, show_default=True, type=click.IntRange(1, 10_000), metavar="N", help="Of each.")
@click.option("--only", multiple=True, metavar="NAME", help="Rows whose name begins so; may be given several times.")
@click.option("--scale", default=1.0, show_default=True, type=click.FloatRange(0.0001, 100), metavar="X",
              help="Of the work in each row.")  # fmt: skip
@click.option("--programs", type=click.Path(exists=True, file_okay=False), metavar="DIR",
              help="Sources [default: examples/duck/benchset]")  # fmt: skip
@options.json_option
def command(
    host: str | None, repeats: int, only: tuple[str, ...], scale: float, programs: str | None, as_json: bool
) -> None:
    """Judge each program of the set N times on a duck, over the classic protocol, and print mean and deviation.

    Times are CPU times of the run's record, in milliseconds; wall is the record's real time. Needs a C compiler.

    \b
    Examples:
      teal duck classic benchset
      teal duck classic benchset --only memory --repeats 20 --json
    """
    from teal.duck.classic import benchset
    from teal.duck.classic.client import Client

    with ExitStack() as stack:
        if host is None:
            from teal.duck.server import Server

            server = stack.enter_context(Server(None, cache=False, classic="127.0.0.1:0"))
            assert server.hatch is not None
            host = server.hatch.address
        client = stack.enter_context(Client(host))
        report = stack.enter_context(draw.progress("benchset", silent=as_json))
        rows = benchset.measure(client, repeats=repeats, only=only, scale=scale, folder=programs, report=report)
        cpu = client.cpu_model_name()
    if as_json:
        draw.emit({"cpu": cpu, "repeats": repeats, "scale": scale, "rows": [asdict(row) for row in rows]})
        return
    numbers = ("mean ms", "stddev ms", "stddev %", "min ms", "wall ms", "memory KiB")
    table = draw.table(["row", *numbers], right=numbers, title=f"{cpu}, {repeats} runs each")
    for row in rows:
        draw.row(
            table, row.name, f"{row.mean_ms:.3f}", f"{row.stddev_ms:.3f}", f"{row.stddev_percent:.2f}",
            f"{row.min_ms:.3f}", f"{row.wall_mean_ms:.3f}", str(row.memory_kb),
        )  # fmt: skip
    draw.console().print(table)
