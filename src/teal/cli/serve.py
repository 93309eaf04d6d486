"""`teal serve`: a host in the foreground.

Theory of operation: one asyncio loop with the Daemon on it. Models of ``--load`` come in through the host's own socket,
as any client's would, and the line that says "ready" is printed when they can be called. The first SIGTERM, SIGINT or
SIGHUP (the terminal is closed) drains: requests that are submitted finish, new ones are refused. The second one stops
at once. Started under nohup, SIGHUP stays ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pwd
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from teal.cli import agent_options, draw, options
from teal.cli import pools as typed
from teal.errors import TealError

if TYPE_CHECKING:
    from teal.host.daemon import Daemon

log = logging.getLogger("teal.serve")


@dataclass(frozen=True, slots=True)
class _Order:
    """What was asked for. models: (name, source or None for the repository, pool or None)."""

    daemon: dict[str, Any]  # arguments of Daemon
    models: list[tuple[str, str | None, str | None]]
    drain_s: float
    ready: Callable[[Daemon], None]  # says so


@click.command("serve", short_help="Run a host in the foreground.")
@click.option("--name", metavar="NAME", help="Name of this host among your own [default: default]")
@click.option("--listen", metavar="ADDRESS", help="Where to listen instead: @abstract/name or a path.")
@click.option("--workers", default=1, show_default=True, metavar="N", help="Processes that run kernels.")
@click.option("--idle", default="200us", show_default=True, metavar="TIME", help="Longest spinning before sleeping.")
@click.option("--threads", type=int, metavar="N", help="Threads of engines, per model [default: all usable cores]")
@click.option("--cores", metavar="LIST", help="Cores of the workers, such as 1,2 or 4-7.")
@click.option("--memory", callback=options.nbytes, metavar="SIZE",
              help="Memory for models, per pool: beyond it those used least recently are parked.")  # fmt: skip
@click.option("--keep", default=1, show_default=True, metavar="N", help="Replaced versions kept for `teal rollback`.")
@click.option("--spares", default=0, show_default=True, metavar="N", help="Workers ready to replace one that dies.")
@click.option("--pool", "pools", multiple=True, metavar="NAME[:SETTINGS]",
              help="One more pool: workers, idle, threads, cores, memory, keep, spares, batch, delay, quantum, helps, "
                   "bytes, in-flight, slots, policy, link, agent-core, placement, max-wait, max-overtaken; "
                   "repeatable.")  # fmt: skip
@click.option("--batch", default=1, show_default=True, metavar="N", help="Most rows of different requests in one run.")
@click.option("--delay", default="0us", show_default=True, metavar="TIME", help="Longest wait of the first of them.")
@click.option("--quantum", default="0us", show_default=True, metavar="TIME",
              help="Time of a request before it gives way, if its kernel can be preempted.")  # fmt: skip
@click.option("--policy", metavar="POLICY", help="Scheduled by an agent with this policy (docs/agents.md).")
@agent_options.options
@click.option("--cache", default=None, metavar="DIR|none",
              help="Where what engines optimised is kept for the next start [default: ~/.cache/teal]")  # fmt: skip
@click.option("--cache-size", callback=options.nbytes, metavar="SIZE", help="Most of it [default: 8G]")
@click.option("--repository", metavar="DIR", help="Folder of models; then no file outside it is loaded.")
@click.option("--load", "models", multiple=True, metavar="[POOL:]NAME[=SOURCE]",
              help="Load this model first; repeatable.")  # fmt: skip
@click.option("--allow-user", "users", multiple=True, metavar="USER", help="Serve this user too (name or number).")
@click.option("--max-bytes", callback=options.nbytes, metavar="SIZE", help="Shared memory per client [half of memory]")
@click.option("--max-in-flight", type=int, metavar="N", help="Requests in flight per client.")
@click.option("--max-models", type=int, metavar="N", help="Model versions on this host.")
@click.option("--max-clients", type=int, metavar="N", help="Clients connected at once.")
@click.option("--drain", default="30s", show_default=True, callback=options.seconds, metavar="TIME",
              help="How long a first SIGTERM waits for requests in flight.")  # fmt: skip
@click.option("--log-level", default="info", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]), help="Of the log on stderr.")  # fmt: skip
@options.json_option
def command(
    name: str | None,
    listen: str | None,
    workers: int,
    idle: str,
    threads: int | None,
    cores: str | None,
    memory: int | None,
    keep: int,
    spares: int,
    pools: tuple[str, ...],
    batch: int,
    delay: str,
    quantum: str,
    policy: str | None,
    cache: str | None,
    cache_size: int | None,
    repository: str | None,
    models: tuple[str, ...],
    users: tuple[str, ...],
    max_bytes: int | None,
    max_in_flight: int | None,
    max_models: int | None,
    max_clients: int | None,
    drain: float,
    log_level: str,
    as_json: bool,
    **agent: Any,
) -> None:
    """Run a host until it is told to stop: `teal stop`, Ctrl-C or SIGTERM.

    Prints one line when it is ready. A first signal lets requests in flight finish, a second one does not. Under a
    service manager, let it signal the main process only (systemd: KillMode=mixed). Exit status 0 after a clean stop.

    \b
    Examples:
      teal serve
      teal serve --name big --workers 2 --cores 2-7 --load minilm=model.onnx --max-bytes 4G
      teal serve --pool fast:workers=2,idle=1ms,cores=1-3 --load fast:echo=builtin:identity
      teal serve --pool rows:batch=8,delay=1ms --load rows:minilm=model.onnx
      teal serve --pool bulk:workers=2,helps=default --load bulk:report=report.onnx --load minilm=model.onnx
      teal serve --quantum 50us --load report=reports:slow
      teal serve --policy shinjuku:quantum=50us --link pcie --agent-core 1
      teal serve --repository /srv/models --load minilm --json
      teal serve --cache /var/cache/teal --cache-size 20G --load minilm=model.onnx
    """
    from teal.host.address import default_address
    from teal.host.defaults import CACHE_BYTES
    from teal.host.limits import Limits
    from teal.host.settings import daemon_arguments

    if name is not None and listen is not None:
        raise click.UsageError("--name and --listen exclude each other")
    quotas = {"bytes": max_bytes, "in_flight": max_in_flight, "models": max_models, "clients": max_clients}
    allowed = [_uid(user) for user in users]
    arguments = daemon_arguments(
        listen or default_address(name or "default"),
        workers=workers,
        idle=idle,
        threads=threads,
        cores=typed.cores(cores),
        limits=Limits(**{key: value for key, value in quotas.items() if value is not None}),
        repository=repository,
        pools=typed.pools(pools),
        memory=memory,
        keep=keep,
        spares=spares,
        batch=batch,
        delay=delay,
        quantum=quantum,
        agent={"policy": policy, **agent},
        cache=True if cache is None else cache != "none" and cache,
        cache_bytes=CACHE_BYTES if cache_size is None else cache_size,
        allowed_uids=allowed,
    )
    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    wanted = _models(models)
    names = sorted({model for model, _, _ in wanted})
    asyncio.run(_serve(_Order(arguments, wanted, drain, lambda daemon: _say_ready(daemon, names, as_json))))


# ---- what was typed --------------------------------------------------------------------------------------------------


def _uid(user: str) -> int:
    if user.isdecimal():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise click.BadParameter(f"{user[:80]!r}: no such user", param_hint="--allow-user") from None


def _models(texts: tuple[str, ...]) -> list[tuple[str, str | None, str | None]]:
    from teal.host.repository import check_name

    found = []
    for text in texts:
        what, equals, source = text.partition("=")
        pool, colon, name = what.rpartition(":")
        found.append((check_name(name), source if equals else None, pool if colon else None))
    return found


# ---- serving ---------------------------------------------------------------------------------------------------------


class _Signals:
    """Stops the daemon when the process is told to: gently, then at once."""

    def __init__(self, daemon: Daemon, drain_s: float) -> None:
        self._daemon = daemon
        self._drain_s = drain_s
        self._tasks: list[asyncio.Task[None]] = []
        self.came = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        again = self.came.is_set()
        self.came.set()
        log.info("%s: %s", number.name, "stopping at once" if again else "stopping once requests in flight have ended")
        if again:
            self._tasks.append(asyncio.create_task(self._daemon.stop(drain=False, timeout=0)))

    async def before(self, task: asyncio.Future[Any]) -> bool:
        """Waits for the task or a signal. True: a signal came while the task was not done."""
        signalled = asyncio.create_task(self.came.wait())
        await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        return not task.done()


async def _serve(order: _Order) -> None:
    from teal.host.daemon import Daemon

    daemon = Daemon(**order.daemon)
    signals = _Signals(daemon, order.drain_s)
    start = asyncio.create_task(daemon.start())
    if await signals.before(start):
        start.cancel()  # it ends its workers
    try:
        await start
    except asyncio.CancelledError:
        return
    # In a thread: it waits for answers that this loop gives.
    loading = asyncio.get_running_loop().run_in_executor(None, _load, daemon.address, order.models)
    try:
        if not await signals.before(loading):
            loading.result()
            order.ready(daemon)
            await signals.before(asyncio.create_task(daemon.stopped.wait()))
    except BaseException:
        await daemon.stop(drain=False, timeout=0)
        raise
    await daemon.stop(drain=True, timeout=order.drain_s)
    with contextlib.suppress(TealError):
        await loading
    log.info("stopped")


def _load(address: str, models: list[tuple[str, str | None, str | None]]) -> None:
    from teal.host.host import connect

    if not models:
        return
    with connect(address) as host:
        for name, source, pool in models:
            info = host.load(name, source, pool=pool).info
            log.info("loaded %s version %d in %s", info.name, info.version, draw.lasted(info.seconds))


def _say_ready(daemon: Daemon, models: list[str], as_json: bool) -> None:
    workers = [worker.pid for pool in daemon.pools.values() for worker in pool.workers]
    if as_json:
        from teal import _core
        from teal._version import __version__

        draw.emit(
            {
                "address": daemon.address,
                "pid": os.getpid(),
                "workers": workers,
                "models": models,
                "pools": {pool.name: [worker.pid for worker in pool.workers] for pool in daemon.pools.values()},
                "version": __version__,
                "abi": _core.ABI_VERSION,
            }
        )
        return
    numbers = ", ".join(map(str, workers))
    shared = f", pools: {', '.join(daemon.pools)}" if len(daemon.pools) > 1 else ""
    loaded = f", models: {', '.join(models)}" if models else ""
    click.echo(
        f"host {daemon.address} is ready: process {os.getpid()}, {len(workers)} worker{'s' * (len(workers) != 1)} "
        f"({numbers}){shared}{loaded}"
    )
