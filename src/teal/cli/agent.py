"""`teal agent`: start, stop, upgrade and change agents of a running host, and see how they do."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from teal.cli import agent_options, draw, options

_Command = TypeVar("_Command", bound=Callable[..., Any])

if TYPE_CHECKING:
    from rich.table import Table

    from teal.host.agent_view import AgentStatistics
    from teal.host.audit import AuditLine


@click.group("agent", short_help="Agents: who schedules a pool, from outside.")
def command() -> None:
    """Agents schedule the requests of a pool from a process of their own, by a policy (docs/agents.md).

    \b
    Example: teal agent start default --policy shinjuku:quantum=50us && teal agent stat
    """


def _policy_option(required: bool) -> Callable[[_Command], _Command]:
    more = "" if required else " [default: the same]"
    return click.option("--policy", "policies", multiple=True, required=required, metavar="POLICY",
                        help=f"For all of the pools, or one for each (repeat){more}.")  # fmt: skip


@command.command("start", short_help="Start an agent.")
@click.argument("pools", metavar="POOL[,POOL…]")
@_policy_option(True)
@agent_options.options
@options.host_option
@options.json_option
def start(pools: str, policies: tuple[str, ...], host: str | None, as_json: bool, **how: Any) -> None:
    """Start an agent for a pool, or one for several. Returns when its decisions count.

    Several pools share the agent's process, and whatever their policies keep in common. A policy is the name of one
    that ships, a class in a file, or a class in a module, with its settings.

    \b
    Examples:
      teal agent start default --policy shinjuku:quantum=50us --agent-core 1
      teal agent start fast,bulk --policy edf --policy fifo
      teal agent start default --policy fifo --agent-core 2,3
      teal agent start default --policy ./mine.py:Mine:depth=2 --json
    """
    with options.reach(host) as reached, draw.progress("starting the agent", silent=as_json):
        agent = reached.agents.start(pools, list(policies), **agent_options.given(how))
    _say(agent, as_json, "started")


@command.command("upgrade", short_help="Replace an agent under load.")
@click.argument("pool")
@_policy_option(False)
@agent_options.options
@options.host_option
@options.json_option
def upgrade(pool: str, policies: tuple[str, ...], host: str | None, as_json: bool, **how: Any) -> None:
    """Replace the agent of a pool, under load: the old one serves until the new one is ready. Nothing is lost.

    Without --policy the same one is made anew, out of the files as they are now. If the new one cannot start, the old
    one goes on.

    \b
    Examples:
      teal agent upgrade default --policy shinjuku:quantum=20us
      teal agent upgrade default --json
    """
    with options.reach(host) as reached, draw.progress("starting the new agent", silent=as_json):
        agent = reached.agents.upgrade(pool, list(policies) or None, **agent_options.given(how))
    _say(agent, as_json, "upgraded")


@command.command("stop", short_help="Stop an agent.")
@click.argument("pool")
@options.host_option
@options.json_option
def stop(pool: str, host: str | None, as_json: bool) -> None:
    """Stop the agent of a pool, which goes on in its own order.

    \b
    Example: teal agent stop default
    """
    with options.reach(host) as reached:
        reached.agents.stop(pool)
    if as_json:
        draw.emit({"stopped": pool})
    else:
        click.echo(f"stopped the agent of {draw.printable(pool)}")


@command.command("set", short_help="Change a policy's settings while it runs.")
@click.argument("pool")
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE…")
@options.host_option
@options.json_option
def set_(pool: str, settings: tuple[str, ...], host: str | None, as_json: bool) -> None:
    """Change settings of the policy that serves a pool, while it serves. Prints all of them as they are now.

    \b
    Example: teal agent set default quantum=20us
    """
    with options.reach(host) as reached:
        now = reached.agents.set(pool, **options.pairs(settings, "NAME=VALUE"))
    if as_json:
        draw.emit({"pool": pool, "settings": now})
    else:
        click.echo("  ".join(f"{draw.printable(name)}={draw.printable(value)}" for name, value in now.items()))


@command.command("ls", short_help="List agents.")
@options.host_option
@options.json_option
def ls(host: str | None, as_json: bool) -> None:
    """List the agents of a host.

    \b
    Example: teal agent ls --json | jq -r '.[].policies[]'
    """
    with options.reach(host) as reached:
        agents = list(reached.agents)
    if as_json:
        draw.emit([dataclasses.asdict(agent) for agent in agents])
    elif agents:
        draw.console().print(agents_table(agents))
    else:
        click.echo("no agents: pools schedule in their own order")


@command.command("stat", short_help="How agents do, and what happened to them.")
@click.argument("pool", required=False)
@click.option("--dump", is_flag=True, help="With the state of that pool's policies.")
@options.host_option
@options.json_option
def stat(pool: str | None, dump: bool, host: str | None, as_json: bool) -> None:
    """Show how the agents of a host do, and the last lines of the audit: who fell, why, after how long.

    `teal stat --agents` shows the same live.

    \b
    Examples:
      teal agent stat
      teal agent stat default --dump
      teal agent stat --json | jq '.audit[-1].why'
    """
    if dump and pool is None:
        raise click.UsageError("--dump goes with the name of a pool")
    with options.reach(host) as reached:
        agents = list(reached.agents) if pool is None else reached.agents.of(pool)
        audit = reached.agents.audit(pool)
        said = reached.agents.dump(pool) if dump and pool is not None else ""
    if as_json:
        found: dict[str, Any] = {
            "agents": [dataclasses.asdict(agent) for agent in agents],
            "audit": [dataclasses.asdict(line) for line in audit],
        }
        draw.emit({**found, "dump": said} if dump else found)
        return
    from teal.cli.agent_tables import drawn

    draw.console().print(drawn(agents))
    for line in audit[-20:]:
        click.echo(audit_text(line))
    if said:
        click.echo("\n".join(draw.printable(part) for part in said.splitlines()))


def audit_text(line: AuditLine) -> str:
    """One line of the audit with its time."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at))
    return draw.printable(f"{at} {line}")


def agents_table(agents: list[AgentStatistics]) -> Table:
    """One row for each."""
    counts = ("fallbacks", "returns", "restarts")
    columns = ("pools", "policy", "state", "process", "core", "place", "link", *counts)
    table = draw.table(columns, right=("process", *counts))
    for agent in agents:
        core = "-" if agent.core is None else str(agent.core)
        workers = f" (workers {', '.join(map(str, agent.workers))})" if agent.workers else ""
        policies = ", ".join(dict.fromkeys(agent.policies))
        cells = (", ".join(agent.pools) + workers, policies, agent.state, str(agent.pid or "-"))
        draw.row(table, *cells, core, agent.place, agent.link, *(str(getattr(agent, count)) for count in counts))
    return table


def _say(agent: AgentStatistics, as_json: bool, what: str) -> None:
    if as_json:
        draw.emit(dataclasses.asdict(agent))
        return
    policies = ", ".join(dict.fromkeys(agent.policies))
    core = f" on core {agent.core}" if agent.place == "offload" and agent.core is not None else " on the workers' cores"
    missing = agent.walls.get("missing")
    click.echo(
        draw.printable(f"{what} {policies} for {', '.join(agent.pools)}: process {agent.pid}{core}, {agent.link}")
    )
    if missing:
        click.echo(draw.printable(f"it is not locked in completely: {missing}"))
