"""`teal duck classic info`: what a duck of the classic protocol says of itself."""

from __future__ import annotations

import click

from teal.cli import draw, options


@click.command("info", short_help="Machine, sizes, caches and counters of a duck of the classic protocol.")
@click.option("--host", required=True, metavar="HOST:PORT", help="Where it is, as in `teal duck serve --classic`.")
@click.option("--log", "log_bytes", type=click.IntRange(0, 32 << 10), metavar="BYTES", help="And the end of its log.")
@options.json_option
def command(host: str, log_bytes: int | None, as_json: bool) -> None:
    """Ask a duck for all that it says of itself (query-all).

    \b
    Example: teal duck classic info --host 127.0.0.1:9999 --json
    """
    from teal.duck.classic.client import Client

    with Client(host) as client:
        facts: dict[str, object] = dict(client.query_all())
        facts["caches"] = {kind: client.info(kind) for kind in ("elf", "data")}
        if log_bytes is not None:
            facts["log"] = client.log(-log_bytes, log_bytes)[1]
    if as_json:
        draw.emit(facts)
        return
    for name, value in facts.items():
        if name not in ("caches", "log"):
            click.echo(draw.printable(f"{name:22} {value}"))
    if log_bytes is not None:
        click.echo(str(facts["log"]), nl=False)
