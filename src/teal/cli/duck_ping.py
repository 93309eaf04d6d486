"""`teal duck ping`: how long a question to a duck takes."""

from __future__ import annotations

import click

from teal.cli import draw, duck_options, options


@click.command("ping", short_help="Round trips to a duck.")
@click.option(
    "-n", "count", default=5, show_default=True, type=click.IntRange(1, 1_000_000), metavar="N", help="So many."
)
@duck_options.duck_options
@options.json_option
def command(count: int, duck: str | None, key_file: str | None, tcp: bool, as_json: bool) -> None:
    """Time round trips to a duck: to its daemon on this machine, to its network loop elsewhere. Not a call.

    \b
    Examples:
      teal duck ping
      teal duck ping -n 1000 --duck 10.0.0.2:7311 --key-file duck.key --json
    """
    with duck_options.reach(duck, key_file, tcp) as reached:
        took = sorted(reached.ping() * 1e6 for _ in range(count))
        address = reached.address
    p50 = took[len(took) // 2]
    if as_json:
        draw.emit({"duck": address, "count": count, "min_us": took[0], "p50_us": p50, "max_us": took[-1]})
        return
    shown = ", ".join(
        f"{name} {draw.micros(value)}" for name, value in (("min", took[0]), ("p50", p50), ("max", took[-1]))
    )
    click.echo(f"{draw.printable(address)}: {count} round trips, {shown}")
