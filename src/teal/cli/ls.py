"""`teal ls`: what is loaded."""

from __future__ import annotations

from dataclasses import asdict

import click

from teal.cli import draw, options


@click.command("ls", short_help="List the models of a running host.")
@options.host_option
@options.json_option
def command(host: str | None, as_json: bool) -> None:
    """List the models of a running host, every version of them. New calls go to the version marked *;
    a parked one comes back when it is called. Preempted: how a request can be taken from its worker, at any
    instruction ("anywhere"), at its own yield points ("yields"), or not at all ("-").

    \b
    Examples:
      teal ls
      teal ls --json | jq -r '.models[] | select(.current) | .name'
    """
    with options.reach(host) as reached:
        models = sorted(reached.models(), key=lambda m: (m.name, m.version))
        address = reached.address
    if as_json:
        draw.emit({"address": address, "models": [asdict(m) for m in models]})
        return
    if not models:
        click.echo("no models are loaded; load one with `teal load NAME SOURCE`")
        return
    numbers = ("version", "size")
    table = draw.table(("name", "version", "kernel", "pool", "preempted", "size", "digest", "signature"), right=numbers)
    for m in models:
        number = f"{m.version}{'*' if m.current else ' '}"
        kind = m.kernel if m.kernel in ("onnx", "systems") else draw.printable(f"{m.kernel} {m.source}")
        kind += f" on {m.device}, {m.path}" if m.device else ""
        kind += " (parked)" if m.parked else ""
        can_leave = "-" if m.preemption == "none" else m.preemption
        weight = draw.size(m.bytes) if m.bytes else "-"
        draw.row(table, m.name, number, kind, m.pool, can_leave, weight, m.digest[:12] or "-", draw.signature(m))
    draw.console().print(table)
