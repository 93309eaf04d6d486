"""The command ``teal``: one file per command, imported only when it is used.

Theory of operation: a lazy click group, so that ``teal --help`` and quick commands do not pay for numpy, rich or an
engine.
"""

from __future__ import annotations

import importlib
import sys

import click

_COMMANDS = {
    "serve": "serve",
    "load": "load",
    "unload": "unload",
    "rollback": "rollback",
    "ls": "ls",
    "verify": "verify",
    "infer": "infer",
    "stat": "stat",
    "agent": "agent",
    "trace": "trace",
    "sim": "sim",
    "stop": "stop",
    "duck": "duck",
    "judge": "judge",
    "tune": "tune",
    "doctor": "doctor",
    "bench": "bench",
    "link": "link",
    "cluster": "cluster",
    "demo": "demo",
    "config": "config",
    "version": "version",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"teal.cli.{_COMMANDS[cmd_name]}").command
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def group() -> None:
    """Resident models and native programs, called through shared memory at the cost of their maths.

    Example: teal serve &  teal load minilm model.onnx  &&  teal stat
    """


def main() -> None:
    """Entry point. Teal's own errors are one line on stderr and exit status 1; usage errors are click's (2)."""
    from teal.errors import TealError

    try:
        group(prog_name="teal")
    except TealError as error:
        click.echo(f"teal: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
