"""`teal duck stop`: ends a duck of this machine."""

from __future__ import annotations

import os
import select
from contextlib import suppress

import click

from teal.cli import draw, options

_EXIT_S = 10.0


@click.command("stop", short_help="Stop a duck of this machine.")
@click.option("--duck", metavar="NAME", help="Its name or address [default: $TEAL_DUCK, or this user's]")
@options.json_option
def command(duck: str | None, as_json: bool) -> None:
    """Stop a duck of this machine. Its programs are ended. Returns when its process is gone.

    \b
    Examples:
      teal duck stop
      teal duck stop --duck big --json
    """
    from teal.duck import messages
    from teal.duck.duck import Duck
    from teal.errors import PeerDied

    with Duck(duck) as reached:
        pid = reached.info()["pid"]
        try:
            pidfd: int | None = os.pidfd_open(pid)
        except OSError:
            pidfd = None
        with suppress(PeerDied):  # it may be gone before it has answered
            reached._link.ask(messages.Stop())
        gone = None
        if pidfd is not None:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            gone = bool(poll.poll(_EXIT_S * 1000))
            os.close(pidfd)
        address = reached.address
    if as_json:
        draw.emit({"address": address, "pid": pid, "process_gone": gone})
        return
    click.echo(f"stopped {draw.printable(address)} (process {pid}{'' if gone else ', which goes on'})")
