"""`teal duck log`: the newest lines of a duck's log, those of its programs among them."""

from __future__ import annotations

import time

import click

from teal.cli import draw, duck_options, options

_PAUSE = 0.3


@click.command("log", short_help="The newest lines of a duck's log.")
@click.option("--bytes", "nbytes", default=8192, show_default=True, type=click.IntRange(1, 65536), metavar="N",
              help="So much of its end.")  # fmt: skip
@click.option("--from", "start", type=click.IntRange(0), metavar="POSITION", help="From there on, as --json said.")
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@duck_options.duck_options
@options.json_option
def command(
    nbytes: int, start: int | None, follow: bool, duck: str | None, key_file: str | None, tcp: bool, as_json: bool
) -> None:
    """Print the end of a duck's log: what it did, and what programs said with duck->log().

    \b
    Examples:
      teal duck log
      teal duck log -f --duck big
      teal duck log --bytes 2000 --json
    """
    with duck_options.reach(duck, key_file, tcp) as reached:
        at, text, after = reached.log(-nbytes if start is None else start, nbytes)
        if as_json:
            draw.emit({"start": at, "end": after, "text": text})
            return
        click.echo(text, nl=False)
        while follow:
            time.sleep(_PAUSE)
            _, text, after = reached.log(after)
            click.echo(text, nl=False)
