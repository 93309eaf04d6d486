"""`teal stop`: ends a host, and waits until it is gone.

Theory of operation: the host's process is held by a pidfd before it is asked, so that the wait can never be for another
process with the same number. A host hangs up on its clients when its workers are gone; `teal serve` then exits. A host
that is embedded in a program stops as well, but its program goes on, so that the wait for the process ends after a
while.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

import click

from teal.cli import draw, options

_MARGIN_S = 10.0  # for ending the workers, beyond the time given for draining
_EXIT_S = 5.0  # from hanging up to the end of the process


@click.command("stop", short_help="Stop a host.")
@click.option("--now", is_flag=True, help="Do not wait for requests in flight: they are cancelled.")
@click.option("--timeout", default="30s", show_default=True, callback=options.seconds, metavar="TIME",
              help="How long requests in flight may take to finish.")  # fmt: skip
@options.host_option
@options.json_option
def command(now: bool, timeout: float, host: str | None, as_json: bool) -> None:
    """Stop a host. Requests in flight finish first, new ones are refused. Returns when its process is gone.

    \b
    Examples:
      teal stop
      teal stop --host big --timeout 5s
    """
    from teal.errors import DeadlineExceeded
    from teal.host import address as addresses
    from teal.host import wire

    with contextlib.ExitStack() as stack:
        reached = stack.enter_context(options.reach(host))
        socket = reached._connection.socket
        pid, _ = addresses.peer(socket)  # 0 when it is in a process namespace that we cannot see
        pidfd = _pidfd(pid)
        if pidfd is not None:
            stack.callback(os.close, pidfd)
        stack.enter_context(draw.progress(f"stopping {reached.address}", silent=as_json))
        began = time.monotonic()
        reached._ask(wire.Stop(not now, timeout))
        if not _readable(socket.fileno(), (0.0 if now else timeout) + _MARGIN_S):
            raise DeadlineExceeded(
                f"the host at {reached.address} (process {pid}) has not stopped after "
                f"{draw.lasted(time.monotonic() - began)}; kill -9 {pid} is safe, it leaves nothing behind"
            )
        gone = None if pidfd is None else _readable(pidfd, _EXIT_S)
        took = time.monotonic() - began
    if as_json:
        draw.emit({"address": reached.address, "pid": pid, "seconds": took, "process_gone": gone})
        return
    process = "" if gone is None else f" (process {pid}{'' if gone else ', which goes on'})"
    click.echo(f"stopped {reached.address}{process} in {draw.lasted(took)}")


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid) if pid > 0 else None
    except OSError:
        return None


def _readable(fd: int, seconds: float) -> bool:
    """Waits for the end of a process (pidfd), or of a connection."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
