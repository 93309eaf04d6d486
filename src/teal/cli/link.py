"""`teal link`: the emulated links between a pool and its agent."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from teal.cli import options


@click.group("link", short_help="Look at the emulated links between pools and agents.")
def command() -> None:
    """Look at the emulated links between a pool and its agent."""


@command.command("measure")
@click.argument("specs", nargs=-1, metavar="[LINK]...")
@click.option("-n", "n", type=click.IntRange(1, 1_000_000), default=5_000, show_default=True, help="Tries of each.")
@options.json_option
def measure(specs: tuple[str, ...], n: int, as_json: bool) -> None:
    """What each access over a link was asked to take, and what it took here.

    LINK is shm, pcie or cxl, with settings after a colon [default: pcie cxl]. What the host pays is timed in the
    thread that pays; one_way and kick from the stamp on one thread until another one may see it. No delay is shorter
    than asked; the clock's own cost, twice some 10 to 20 ns, is in each.

    \b
    Examples:
      teal link measure
      teal link measure pcie:read=900ns --json
    """
    from teal import link

    found = {link.parse(spec).text: link.measure(spec, n) for spec in specs or ("pcie", "cxl")}
    if as_json:
        links = [{"link": text, "delays": [asdict(delay) for delay in delays]} for text, delays in found.items()]
        click.echo(json.dumps({"links": links}, indent=2))
        return
    for text, delays in found.items():
        click.echo(f"{text}\n  {'':38}{'asked':>8}{'p50':>8}{'p99':>8}  ns")
        for delay in delays:
            click.echo(f"  {delay.name:38}{delay.asked_ns:>8}{delay.p50_ns:>8}{delay.p99_ns:>8}")
