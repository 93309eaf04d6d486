"""`teal rollback`: makes an earlier version of a model current again."""

from __future__ import annotations

import click

from teal.cli import draw, options


@click.command("rollback", short_help="Make an earlier version of a model current again.")
@click.argument("name")
@click.option("--version", type=int, metavar="N", help="This version [default: the one that was replaced last]")
@options.host_option
@options.json_option
def command(name: str, version: int | None, host: str | None, as_json: bool) -> None:
    """Make an earlier version of a model current again, under load and without losing a request.

    A host keeps the file of the version that was replaced last (`teal serve --keep N` keeps more); `teal ls` shows
    them. What is rolled back is kept in turn: a second rollback undoes the first.

    \b
    Examples:
      teal rollback minilm
      teal rollback minilm --version 3
    """
    with options.reach(host) as reached, draw.progress(f"bringing {name} back", silent=as_json):
        before = next((m.version for m in reached.models() if m.name == name and m.current), None)
        model = reached.rollback(name, version)
    if as_json:
        draw.emit({"name": name, "version": model.version, "was": before})
        return
    click.echo(f"{name} is version {model.version} again (was {before})")
