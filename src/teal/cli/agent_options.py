"""The options of `teal serve` and `teal agent` that say how an agent is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from teal.cli import options as shared
from teal.cli import pools

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _cores(context: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    return pools.cores(text, "--agent-core")


_OPTIONS = (
    click.option("--link", metavar="LINK",
                 help="Over memory (shm), or an emulated link: pcie, cxl, pcie:read=900ns,… [default: shm]"),
    click.option("--agents", type=int, metavar="N",
                 help="So many share the pool, each with workers of its own [default: one, or one a core]"),
    click.option("--agent-core", callback=_cores, metavar="CORES",
                 help="A core of the agent's own, or one for each: 2,3."),
    click.option("--placement", type=click.Choice(["offload", "host", "auto"]),
                 help="On its own core, on the workers' cores, or moved by load [default: offload]"),
    click.option("--max-wait", metavar="TIME",
                 help="Longest wait for a decision while a worker idles; then the pool goes on alone [default: 50ms]"),
    click.option("--max-overtaken", metavar="TIME",
                 help="A request waits while one runs that came so much later: the pool goes on alone [default: 30s]"),
    click.option("--heartbeat", metavar="TIME",
                 help="Longest that its heart may stand still while requests wait for it [default: 50ms]"),
    click.option("--come-back", metavar="TIME",
                 help="One whose heart stood still is taken back if it beats again so soon; 0: never [default: 2s]"),
    click.option("--local-fast-path/--no-local-fast-path", default=None,
                 help="A request that finds an idle worker and nobody waiting runs at once."),
    click.option("--agent-memory", callback=shared.nbytes, metavar="SIZE", help="For its policy [default: 1G]"),
)  # fmt: skip


def options(command: _Command) -> _Command:
    """All of them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Those that were typed."""
    return {name: value for name, value in values.items() if value is not None}
