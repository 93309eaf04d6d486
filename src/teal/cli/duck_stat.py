"""`teal duck stat`: a duck's counters."""

from __future__ import annotations

import click

from teal.cli import draw, duck_options, options


@click.command("stat", short_help="Counters of a duck.")
@duck_options.duck_options
@options.json_option
def command(duck: str | None, key_file: str | None, tcp: bool, as_json: bool) -> None:
    """Print the counters of a duck: sessions, caches, boxes, network.

    \b
    Examples:
      teal duck stat
      teal duck stat --json
    """
    with duck_options.reach(duck, key_file, tcp) as reached:
        found = reached.statistics()
    if as_json:
        draw.emit(found)
        return
    for name, value in found.items():
        if isinstance(value, dict):
            click.echo(f"{name}")
            for key, number in value.items():
                click.echo(draw.printable(f"  {key:24} {number}"))
        elif value is not None:
            click.echo(draw.printable(f"{name:26} {value}"))
