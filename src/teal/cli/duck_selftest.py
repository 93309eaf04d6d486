"""`teal duck selftest`: real programs in each back end of a duck, and what this machine lacks."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import click

from teal.cli import draw, duck_options, options


@click.command("selftest", short_help="Run real programs in each back end.")
@duck_options.duck_options
@options.json_option
def command(duck: str | None, key_file: str | None, tcp: bool, as_json: bool) -> None:
    """Run real programs in each back end of a duck: PASS, FAIL, or CAUTION with the command that fixes it.

    Without --duck, and when none of yours runs here, a duck is made for it. Exit status 1 if something fails.

    \b
    Examples:
      teal duck selftest
      teal duck selftest --duck 10.0.0.2:7311 --key-file duck.key --json
    """
    from teal.duck.server import Server
    from teal.errors import NotFound

    with ExitStack() as stack:
        try:
            reached = stack.enter_context(duck_options.reach(duck, key_file, tcp))
        except NotFound:
            if duck is not None:
                raise
            reached = stack.enter_context(stack.enter_context(Server(None)).connect())
        with draw.progress("running programs", silent=as_json):
            results = reached.selftest()
    failed = [one for one in results if one["outcome"] == "FAIL"]
    if as_json:
        draw.emit({"passed": not failed, "results": results})
    else:
        for one in results:
            click.echo(draw.printable(f"{one['outcome']:8} {one['name']:24} {one['detail']}"))
            if one["fix"]:
                click.echo(draw.printable(f"{'':8} {'':24} fix: {one['fix']}"))
    sys.exit(1 if failed else 0)
