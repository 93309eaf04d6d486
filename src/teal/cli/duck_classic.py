"""`teal duck classic`: a host of JudgeDuck-OS's own protocol, for ducks that serve it (`teal duck serve --classic`)."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "judge": "duck_classic_judge",
    "info": "duck_classic_info",
    "benchset": "duck_classic_benchset",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"teal.cli.{_COMMANDS[cmd_name]}").command
        return found


@click.group("classic", cls=_Lazy, short_help="JudgeDuck-OS's own protocol: judge, info, benchset; each with --json.")
def command() -> None:
    """Speak JudgeDuck-OS's own UDP protocol with a duck. It has no authentication (docs/duck-classic.md).

    All commands have --json.

    \b
    Example: teal duck classic judge prog.elf --host 127.0.0.1:9999 < in
    """
