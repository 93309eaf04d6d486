"""`teal duck classic`: a host of JudgeDuck-OS's own protocol, for ducks that serve it (`teal duck serve --classic`)."""

from __future__ import annotations

import click

from .lazy import Lazy

_COMMANDS = {
    "judge": "duck_classic_judge",
    "info": "duck_classic_info",
    "benchset": "duck_classic_benchset",
}


@click.group(
    "classic",
    cls=Lazy,
    files=_COMMANDS,
    short_help="JudgeDuck-OS's own protocol: judge, info, benchset; each with --json.",
)
def command() -> None:
    """Speak JudgeDuck-OS's own UDP protocol with a duck. It has no authentication (docs/duck-classic.md).

    All commands have --json.

    \b
    Example: teal duck classic judge prog.elf --host 127.0.0.1:9999 < in
    """
