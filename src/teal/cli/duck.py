"""`teal duck`: native programs that stay resident in a sandbox, here or elsewhere. One file a command, as in `teal`."""

from __future__ import annotations

import click

from .lazy import Lazy

_COMMANDS = {
    "serve": "duck_serve",
    "cc": "duck_cc",
    "run": "duck_run",
    "put": "duck_put",
    "ls": "duck_ls",
    "info": "duck_info",
    "stat": "duck_stat",
    "log": "duck_log",
    "ping": "duck_ping",
    "selftest": "duck_selftest",
    "key": "duck_key",
    "classic": "duck_classic",
    "stop": "duck_stop",
}


@click.group(
    "duck", cls=Lazy, files=_COMMANDS, short_help="Native programs, resident in a sandbox here or on another machine."
)
def command() -> None:
    """Ducks keep native programs resident in a sandbox, and are called from here or from another machine.

    \b
    Example: teal duck serve &  teal duck cc hello.c -o hello.elf  &&  echo world | teal duck run hello.elf
    """
