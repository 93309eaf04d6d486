"""`teal duck stat`: a duck's counters."""

from __future__ import annotations

from typing import Any

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
    _draw(found)


def _draw(numbers: dict[str, Any], indent: str = "") -> None:
    width = 26 - len(indent)
    for name, value in numbers.items():
        if isinstance(value, dict):
            click.echo(f"{indent}{name}")
            _draw(value, indent + "  ")
        elif isinstance(value, float):
            click.echo(f"{indent}{name:{width}} {value:.3f}")
        elif value not in (None, ""):
            click.echo(draw.printable(f"{indent}{name:{width}} {value}"))
