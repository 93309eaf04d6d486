"""`teal verify`: is what is resident still what was loaded?"""

from __future__ import annotations

from dataclasses import asdict

import click

from teal.cli import draw, options


@click.command("verify", short_help="Compare resident model files with what was loaded.")
@click.argument("name", required=False)
@click.option("--version", type=int, metavar="N", help="Only this version [default: all]")
@options.host_option
@options.json_option
def command(name: str | None, version: int | None, host: str | None, as_json: bool) -> None:
    """Read the resident files of a model, or of all, anew: SHA-256 and seals. Exit status 1 if one is not as loaded.

    \b
    Examples:
      teal verify
      teal verify minilm --json
    """
    with options.reach(host) as reached, draw.progress("reading", silent=as_json):
        found = reached.verify(name, version)
    if as_json:
        draw.emit({"models": [asdict(each) | {"ok": each.ok} for each in found]})
    else:
        for each in found:
            verdict = "as loaded" if each.ok else "NOT AS LOADED"
            what = "no file" if each.found is None else f"SHA-256 {each.found[:16]}…, {draw.size(each.bytes)}"
            click.echo(f"{each.name} version {each.version}: {verdict} ({what})")
        if not found:
            click.echo("no model is loaded")
    if not all(each.ok for each in found):
        raise SystemExit(1)
