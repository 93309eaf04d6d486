"""`teal duck ls`: the sessions of a duck, or the ducks of the local network."""

from __future__ import annotations

import click

from teal.cli import draw, duck_options, options


@click.command("ls", short_help="List sessions of a duck, or ducks of the local network.")
@click.option("--lan", is_flag=True, help="Ducks that were announced here (teal duck serve --announce).")
@click.option("--wait", default="2s", show_default=True, callback=options.seconds, metavar="TIME", help="Of --lan.")
@duck_options.duck_options
@options.json_option
def command(lan: bool, wait: float, duck: str | None, key_file: str | None, tcp: bool, as_json: bool) -> None:
    """List the sessions of a duck: who has which program resident, on how many cores.

    \b
    Examples:
      teal duck ls
      teal duck ls --duck 10.0.0.2:7311 --key-file duck.key --json
      teal duck ls --lan
    """
    if lan:
        _lan(wait, as_json)
        return
    with duck_options.reach(duck, key_file, tcp) as reached:
        sessions = reached.info()["sessions"]
    if as_json:
        draw.emit({"sessions": sessions})
        return
    table = draw.table(("session", "program", "owner", "cores", "process", "bytes", "input", "state", "for"),
                       right=("session", "cores", "process", "bytes", "input"))  # fmt: skip
    for one in sessions:
        named = draw.printable(one["name"] or one["program"][:16])
        sizes = (draw.size(one["bytes"]), draw.size(one["ib_bytes"]))
        draw.row(table, str(one["session"]), named, draw.printable(one["owner"]), str(one["cores"]), str(one["pid"]),
                 *sizes, one["state"], draw.lasted(one["seconds"]))  # fmt: skip
    draw.console().print(table)


def _lan(wait: float, as_json: bool) -> None:
    from teal.duck.discovery import find

    with draw.progress("looking for ducks", silent=as_json):
        found = find(wait)
    if as_json:
        draw.emit({"ducks": found})
        return
    table = draw.table(("name", "address", "cores", "isa", "version"), right=("cores",))
    for one in found:
        draw.row(table, *(draw.printable(str(one[key])) for key in ("name", "address", "cores", "isa", "version")))
    draw.console().print(table)
