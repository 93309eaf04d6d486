"""`teal duck key`: a new key for ducks and their clients."""

from __future__ import annotations

import os
import stat
import sys

import click

from teal.cli import draw, options


@click.command("key", short_help="Make a key.")
@options.json_option
def command(as_json: bool) -> None:
    """Print a new key. Redirect it into a file; the file is made readable for you alone.

    \b
    Examples:
      teal duck key > duck.key
      teal duck key --json
    """
    from teal.duck.key import make_key

    # The shell has made the file with whatever its umask says, before we ran.
    if stat.S_ISREG((status := os.fstat(sys.stdout.fileno())).st_mode) and status.st_mode & 0o077:
        os.fchmod(sys.stdout.fileno(), 0o600)
    if as_json:
        draw.emit({"key": make_key()})
    else:
        click.echo(make_key())
