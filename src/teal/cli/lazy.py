"""A group of commands, one file each, that are imported only when they are used.

Theory of operation: so that ``teal --help`` and quick commands do not pay for numpy, rich or an engine.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class Lazy(click.Group):
    """``files``: name of a command -> module in teal.cli whose ``command`` it is."""

    def __init__(self, *args: Any, files: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self._files = files

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._files)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._files:
            return None
        found: click.Command = importlib.import_module(f"teal.cli.{self._files[cmd_name]}").command
        return found
