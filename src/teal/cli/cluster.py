"""`teal cluster`: a duck on every node of a Ray cluster."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import json_option, seconds

if TYPE_CHECKING:
    from teal.cluster import Nest

_Command = Callable[..., Any]


@click.group(name="cluster")
def command() -> None:
    """Put a duck on every node of a Ray cluster; Ray places them and starts them again.

    Example: teal cluster up --ray 10.0.0.1:6379 --key-file duck.key && teal cluster ls --ray 10.0.0.1:6379
    """


def ray_option(command: _Command) -> _Command:
    return click.option(
        "--ray", "address", metavar="HOST:PORT", envvar="RAY_ADDRESS", required=True,
        help="Where the cluster's head listens, or `auto` on one of its nodes [default: $RAY_ADDRESS].",
    )(command)  # fmt: skip


def name_option(command: _Command) -> _Command:
    return click.option("--name", default="default", show_default=True, help="Which set of ducks.")(command)


@command.command(name="up")
@ray_option
@name_option
@json_option
@click.option("--count", type=click.IntRange(1, 4096), help="Ducks in all [default: one on every node].")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The same on every node [default: any].")
@click.option("--key-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="The ducks' key, read here and sent through Ray (encrypted only by Ray's TLS).")  # fmt: skip
@click.option("--node-key-file", metavar="PATH", help="The same, but a file that lies on every node already.")
@click.option("--timeout", callback=seconds, default="120s", show_default=True, help="To wait for the ducks.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def up(
    address: str,
    name: str,
    as_json: bool,
    count: int | None,
    port: int,
    key_file: Path | None,
    node_key_file: str | None,
    timeout: float,
    options: tuple[str, ...],
) -> None:
    """A duck on every node that has none of this name. Safe to repeat: nodes that have come since get theirs.

    What follows `--` is given to `teal duck serve`.

    \b
    Examples:
      teal cluster up --ray auto --key-file duck.key
      teal cluster up --ray 10.0.0.1:6379 --node-key-file /etc/teal/duck.key -- --memory 8G --idle 10ms
    """
    from teal import cluster

    if key_file is not None and node_key_file is not None:
        raise click.UsageError("--key-file and --node-key-file: one of them, please")
    passed = [*options, *(("--key-file", node_key_file) if node_key_file else ())]
    key = key_file.read_text() if key_file else None
    nests = cluster.up(
        address, name=name, count=count, port=port, options=passed, key=key, timeout=timeout,
        progress=lambda what: None if as_json else click.echo(f"{what} …", err=True),
    )  # fmt: skip
    _show(nests, as_json)
    if any(nest.error for nest in nests):
        sys.exit(1)


@command.command(name="ls")
@ray_option
@name_option
@json_option
def ls(address: str, name: str, as_json: bool) -> None:
    """The ducks of a cluster: node, address, whether it was restarted.

    Example: teal duck info $(teal cluster ls --ray auto --json | jq -r '.[0].address')
    """
    from teal.cluster import Cluster

    with Cluster(address, name) as cluster:
        _show(cluster.nests(), as_json)


@command.command(name="down")
@ray_option
@name_option
@json_option
def down(address: str, name: str, as_json: bool) -> None:
    """End the ducks of a cluster and give their places back to Ray.

    Example: teal cluster down --ray auto
    """
    from teal import cluster

    count = cluster.down(address, name=name)
    click.echo(json.dumps({"ended": count}) if as_json else f"{count} ducks ended")


def _show(nests: Sequence[Nest], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(nest) for nest in nests]))
        return
    click.echo(f"{'duck':>4}  {'address':<22} {'node':<12} {'pid':>8} {'restarted':>9} {'up':>8}")
    for nest in nests:
        restarted = "yes" if nest.restarted else "no"
        where = f"{nest.address or '-':<22} {nest.node[:12] or '-':<12} {nest.pid or '-':>8}"
        click.echo(
            f"{nest.index:>4}  {where} {restarted:>9} {nest.up_s:>7.0f}s" + (f"  {nest.error}" if nest.error else "")
        )
