"""`teal version`: which builds are at work here."""

from __future__ import annotations

import importlib.metadata
import platform

import click

from teal.cli import draw, options


@click.command("version")
@options.json_option
def command(as_json: bool) -> None:
    """Show the versions of Teal and of what it runs on. Client and host must have the same ABI and protocol.

    \b
    Examples:
      teal version
      teal version --json | jq .abi
    """
    from teal import _core
    from teal._version import __version__
    from teal.host import wire

    found = {
        "teal": __version__,
        "abi": _core.ABI_VERSION,
        "protocol": wire.PROTOCOL,
        "isa": _core.isa(),
        "python": platform.python_version(),
        "numpy": _installed("numpy"),
        "onnxruntime": _installed("onnxruntime"),
    }
    if as_json:
        draw.emit(found)
        return
    for name, value in found.items():
        click.echo(f"{name:12} {'not installed' if value is None else value}")


def _installed(package: str) -> str | None:
    # From its metadata: importing an engine takes long and may print.
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
