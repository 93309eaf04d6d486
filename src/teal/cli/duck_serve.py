"""`teal duck serve`: a duck in the foreground.

Theory of operation: teal.duck.Server has threads of its own; this one waits for a signal or for `teal duck stop`. What
runs when it comes is ended: a duck has nothing to drain, as calls take microseconds and a client hears of the end of a
long one.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import click

from teal.cli import draw, options
from teal.errors import KernelFailed

if TYPE_CHECKING:
    from teal.duck.discovery import Announcement
    from teal.duck.server import Server

log = logging.getLogger("teal.duck")


@click.command("serve", short_help="Run a duck in the foreground.")
@click.option("--name", default="default", show_default=True, metavar="NAME", help="Name among your ducks here.")
@click.option("--listen", metavar="HOST:PORT", help="For clients of other machines too, UDP and TCP. Port 0: any.")
@click.option("--key-file", metavar="FILE", help="Key that they need; beyond loopback it must be given.")
@click.option("--multicast", metavar="ADDRESS", help="Take data that is sent to many ducks at once, by the interface "
              "with this IPv4 address (teal.duck.Group).")  # fmt: skip
@click.option("--idle", default="10ms", show_default=True, metavar="TIME", help="Polls so long after the last call.")
@click.option("--memory", callback=options.nbytes, metavar="SIZE", help="Most memory for all [default: what is free]")
@click.option("--reserve", default="512M", show_default=True, callback=options.nbytes, metavar="SIZE",
              help="Of what is free, left free.")  # fmt: skip
@click.option("--cache", metavar="DIR|none", help="Where programs and data are kept [default: ~/.cache/teal/ducks]")
@click.option("--sandbox", default="process", show_default=True, type=click.Choice(["process", "kvm", "inline"]),
              help="What programs run in.")  # fmt: skip
@click.option("--trust-programs", is_flag=True, help="Allow sandbox inline: programs inside this very process, for "
              "tests and for nobody's programs but your own.")  # fmt: skip
@click.option(
    "--spares", default=1, show_default=True, type=click.IntRange(0, 64), metavar="N", help="Boxes kept ready."
)
@click.option("--no-direct", is_flag=True, help="All calls of clients elsewhere go through this process, over its one "
              "port.")  # fmt: skip
@click.option("--classic", metavar="HOST:PORT", help="JudgeDuck-OS's own UDP protocol too: no authentication, so "
              "loopback only; usual port 9999.")  # fmt: skip
@click.option("--classic-trusted", is_flag=True, help="--classic beyond loopback: whoever reaches it may run programs, "
              "read and overwrite its buffer and end all sessions.")  # fmt: skip
@click.option("--classic-buffer", callback=options.nbytes, metavar="SIZE",
              help="Its flat buffer [default: half of what sessions have, or less]")  # fmt: skip
@click.option("--announce", is_flag=True, help="Let `teal duck ls --lan` find it (needs the extra: discovery).")
@click.option("--selftest", is_flag=True, help="Run the self-test first, and refuse to serve if it fails.")
@click.option("--log-level", default="info", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]), help="Of the log on stderr.")  # fmt: skip
@options.json_option
def command(
    name: str,
    listen: str | None,
    key_file: str | None,
    multicast: str | None,
    idle: str,
    memory: int | None,
    reserve: int,
    cache: str | None,
    sandbox: str,
    trust_programs: bool,
    spares: int,
    no_direct: bool,
    classic: str | None,
    classic_trusted: bool,
    classic_buffer: int | None,
    announce: bool,
    selftest: bool,
    log_level: str,
    as_json: bool,
) -> None:
    """Run a duck until it is told to stop: `teal duck stop`, Ctrl-C or SIGTERM.

    Prints one line when it is ready. Whoever has the key may run programs here, in the sandbox that `teal duck info`
    describes. Exit status 0 after a clean stop.

    \b
    Examples:
      teal duck serve
      teal duck key > duck.key && teal duck serve --listen 0.0.0.0:7311 --key-file duck.key
      teal duck serve --name big --memory 24G --idle 100ms --json
      teal duck serve --classic 127.0.0.1:9999
    """
    from teal.duck.server import Server

    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    came = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: came.set())
    with Server(
        name,
        listen=listen,
        key_file=key_file,
        multicast=multicast,
        idle=idle,
        memory=memory,
        reserve=reserve,
        cache=False if cache == "none" else cache,
        sandbox=sandbox,
        trust_programs=trust_programs,
        spares=spares,
        direct=not no_direct,
        classic=classic,
        classic_trusted=classic_trusted,
        classic_buffer=classic_buffer,
    ) as server:
        if selftest:
            _check(server)
        announced = _announce(server) if announce else None
        if as_json:
            draw.emit({"address": server.address, "listening": server.listening, "pid": os.getpid(),
                       "sandbox": sandbox, "classic": server.hatch.address if server.hatch else None})  # fmt: skip
        else:
            more = f" and at {server.listening}" if server.listening else ""
            more += f", classic at {server.hatch.address}" if server.hatch else ""
            click.echo(f"duck {server.address}{more} is ready: process {os.getpid()}, sandbox {sandbox}")
        sys.stdout.flush()
        while not came.is_set() and not server.stopped.wait(0.1):
            pass
        if announced is not None:
            announced.close()


def _check(server: Server) -> None:
    """Raises KernelFailed when a program of the self-test does not run as it should."""
    from teal.duck.selftest import selftest

    results = selftest(server)
    for one in results:
        log.info("self-test: %-8s %s: %s", one.outcome, one.name, one.detail)
    failed = [one.name for one in results if one.outcome == "FAIL"]
    if failed:
        raise KernelFailed(f"self-test: {', '.join(failed)} failed; `teal duck selftest` says more")


def _announce(server: Server) -> Announcement:
    from teal.duck.discovery import Announcement

    return Announcement(server)
