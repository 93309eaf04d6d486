"""`teal duck put`: leave a file with ducks, so that no program has to wait for it."""

from __future__ import annotations

import click

from teal.cli import draw, options


@click.command("put", short_help="Leave a file with one duck or many.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("ducks", nargs=-1, required=True, metavar="HOST:PORT...")
@click.option("--key-file", metavar="FILE", help="Their key, as `teal duck key` made it.")
@click.option("--tcp", is_flag=True, help="Over TCP instead of UDP.")
@click.option("--multicast", metavar="ADDRESS", help="Send it once, to all, by the interface with this IPv4 address.")
@options.json_option
def command(file: str, ducks: tuple[str, ...], key_file: str | None, tcp: bool, multicast: str | None,
            as_json: bool) -> None:  # fmt: skip
    """Send a file to ducks, which keep it under its SHA-256; those that have it are sent nothing.

    A session then maps it by that name: session.map(teal.duck.Blob(sha256, bytes)).

    \b
    Examples:
      teal duck put weights.bin 10.0.0.2:7311 --key-file duck.key
      teal duck put weights.bin 10.0.0.2:7311 10.0.0.3:7311 --key-file duck.key --multicast 10.0.0.1
    """
    from contextlib import ExitStack

    from teal.duck.duck import Duck
    from teal.duck.group import Group

    with ExitStack() as stack:
        reached = [stack.enter_context(Duck(address, key_file=key_file, tcp=tcp)) for address in ducks]
        if multicast is not None:
            group = Group(reached, interface=multicast)
            blob = group.put(file)
            sent, once = group.statistics().single_bytes, group.statistics().group_bytes
        else:
            blob, *_ = [duck.put(file) for duck in reached]
            sent, once = sum(duck.statistics()["client"]["sent_bytes"] for duck in reached), 0
    if as_json:
        draw.emit({"sha256": blob.digest, "bytes": blob.nbytes, "ducks": list(ducks), "sent_bytes": sent,
                   "multicast_bytes": once})  # fmt: skip
        return
    how = f"{draw.size(once)} to all at once and {draw.size(sent)} singly" if once else f"{draw.size(sent)} sent"
    click.echo(f"{blob.digest}: {draw.size(blob.nbytes)} with {len(ducks)} duck(s), {how}")
