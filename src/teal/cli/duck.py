"""`teal duck`: native programs that stay resident in a sandbox, here or elsewhere. One file a command, as in `teal`."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "serve": "duck_serve",
    "cc": "duck_cc",
    "run": "duck_run",
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


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"teal.cli.{_COMMANDS[cmd_name]}").command
        return found


@click.group("duck", cls=_Lazy, short_help="Native programs, resident in a sandbox here or on another machine.")
def command() -> None:
    """Ducks keep native programs resident in a sandbox, and are called from here or from another machine.

    \b
    Example: teal duck serve &  teal duck cc hello.c -o hello.elf  &&  echo world | teal duck run hello.elf
    """
