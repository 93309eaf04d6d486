"""`teal unload`: takes a model out of a running host."""

from __future__ import annotations

import click

from teal.cli import draw, options


@click.command("unload", short_help="Unload a model.")
@click.argument("name")
@click.option("--version", type=int, metavar="N", help="Only this version [default: all]")
@click.option("--force", is_flag=True, help="Cancel the requests that wait for it; those that run still finish.")
@options.host_option
@options.json_option
def command(name: str, version: int | None, force: bool, host: str | None, as_json: bool) -> None:
    """Unload a model. Returns when its requests have finished and the workers have given its memory back.

    \b
    Examples:
      teal unload minilm
      teal unload minilm --version 2 --force
    """
    with options.reach(host) as reached, draw.progress("waiting for requests in flight", silent=as_json):
        doomed = [m for m in reached.models() if m.name == name and version in (None, m.version)]
        reached.unload(name, version, force=force)
    if as_json:
        draw.emit({"unloaded": [{"name": m.name, "version": m.version, "bytes": m.bytes} for m in doomed]})
        return
    for m in doomed:
        click.echo(f"unloaded {m.name} version {m.version}")
