"""The command ``teal``: one file per command, imported only when it is used (lazy.py)."""

from __future__ import annotations

import sys

import click

from .lazy import Lazy

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


@click.group(
    cls=Lazy, files=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
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
