"""`teal stat`: where the time goes, live.

Theory of operation: the command looks at the host's raw counters every interval and shows the differences
(cli/interval.py). It opens no session, so it is not among the clients that it shows, and a look costs the host one
message; nothing of it is on the path of a call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from teal import _core
from teal.cli import draw, options

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from teal.cli.interval import Interval, Version
    from teal.host.host import Host
    from teal.host.records import Histogram

_INTERVAL_S = 0.5


@click.command("stat", short_help="Show a host live: where the time goes.")
@click.option("--once", is_flag=True, help="Print once, as when stdout is not a terminal.")
@click.option("--interval", callback=options.seconds, metavar="TIME", help="Between two looks [default: 500ms]")
@click.option(
    "--agents", "of_agents", is_flag=True, help="Agents instead: stages, staged hits, refusals, events a second."
)
@click.option("--watch", is_flag=True, help="With --json: one object a line, each interval, until interrupted.")
@options.host_option
@options.json_option
def command(once: bool, interval: float | None, of_agents: bool, watch: bool, host: str | None, as_json: bool) -> None:
    """Show a host live: workers, models with the histograms of their stages, clients.

    Stages: queue (from submitting to the kernel), run (in the kernel), copy (into and out of slots, by clients and
    workers), wake (from the kernel to the client), total. Unanswered: failed, cancelled and expired requests. Printed
    once, numbers count from the start of the host, or with --interval from one interval.

    \b
    Examples:
      teal stat
      teal stat --once --interval 5s
      teal stat --agents
      teal stat --json --watch --interval 1s | jq -c '.models[] | [.name, .stages.run.p99_us]'
    """
    if watch and not as_json:
        raise click.UsageError("--watch goes with --json; without --json, teal stat is live on a terminal")
    if watch and once:
        raise click.UsageError("--watch and --once exclude each other")
    if interval is not None and interval < 0.01:
        raise click.BadParameter("expected at least 10ms", param_hint="--interval")
    step = _INTERVAL_S if interval is None else interval
    if of_agents:
        from teal.cli.agent_stat import show

        show(host, once=once, interval=interval, step=step, watch=watch, as_json=as_json)
        return
    with options.reach(host) as reached, contextlib.suppress(KeyboardInterrupt):  # the way to end it
        if watch:
            for found in _intervals(reached, step):
                draw.emit(dataclasses.asdict(found))
        elif once or as_json or not sys.stdout.isatty():
            found = _sample(reached, interval)
            if as_json:
                draw.emit(dataclasses.asdict(found))
            else:
                draw.console().print(_drawn(found))
        else:
            _live(reached, step)


def _sample(host: Host, seconds: float | None) -> Interval:
    from teal.cli.interval import between

    return between(None, host._raw_statistics()) if seconds is None else next(_intervals(host, seconds))


def _intervals(host: Host, seconds: float) -> Iterator[Interval]:
    """One after the other; a consumer that is slow gets longer ones."""
    from teal.cli.interval import between

    before = host._raw_statistics()
    due = time.monotonic()
    while True:
        due = max(due + seconds, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        after = host._raw_statistics()
        yield between(before, after)
        before = after


def _live(host: Host, seconds: float) -> None:
    from rich.live import Live

    with Live(_drawn(_sample(host, None)), console=draw.console(), auto_refresh=False) as live:
        for found in _intervals(host, seconds):
            live.update(_drawn(found), refresh=True)


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _drawn(found: Interval) -> Group:
    from rich.console import Group
    from rich.text import Text

    period = "since its start" if found.since_start else f"last {draw.lasted(found.interval_s)}"
    parts = [f"host {draw.printable(found.address)}", f"process {found.pid}", f"up {draw.lasted(found.uptime_s)}",
             f"queued {found.queued}", f"active {found.active}", f"restarts {found.restarts}"]  # fmt: skip
    if found.restarts:
        parts += [f"failed with a worker {found.failed_with_worker}", f"run again {found.run_again}"]
    line = Text("  ".join(parts) + f"  ({period})")
    models = _models(found) if found.models else Text("no models are loaded")
    clients = _clients(found) if found.clients else Text("no client with calls is connected")
    return Group(line, Text(), _workers(found), Text(), models, *map(Text, _remarks(found)), Text(), clients)


def _remarks(found: Interval) -> list[str]:
    """What the tables do not say by themselves."""
    remarks = []
    if any(m.current and m.version > 1 for m in found.models):
        remarks.append("* copy, wake and total: as callers saw them, of all versions of the name since it came")
    if found.unattributed:
        remarks.append(
            f"{found.unattributed:,} calls are in no row's copy, wake and total: a client counts "
            f"{_core.MODELS_COUNTED_APART} models apart"
        )
    remarks += [
        f"pool {pool.name}: {pool.stolen:,} requests were run by other pools that help it"
        for pool in found.pools if pool.stolen
    ]  # fmt: skip
    remarks += [line for model in found.models if (line := _preempted(model))]
    cache = found.cache
    if cache.hits or cache.misses or cache.note:
        loads = cache.hits + cache.misses
        removed = f", {cache.refused} did not fit and were removed" if cache.refused else ""
        note = f"; {draw.printable(cache.note)}" if cache.note else ""
        remarks.append(f"{cache.hits} of {loads} loads by engines began with a snapshot on disk{removed}{note}")
    gone = sum(pool.sessions_gone for pool in found.pools)
    if gone:
        requests = sum(pool.requests_gone for pool in found.pools)
        remarks.append(
            f"{gone:,} client{'s' * (gone != 1)} that left had {requests:,} requests; the models' rows have them"
        )
    return remarks


def _preempted(model: Version) -> str:
    """How often requests of a version left their worker in the middle, or should have."""
    counts = {"taken from their worker": model.preemptions, "left it at a yield point": model.yields,
              "should have left and could not": model.cannot_preempt,
              "ended while they were away": model.dropped}  # fmt: skip
    said = ", ".join(f"{what} {count:,}" for what, count in counts.items() if count)
    return f"{draw.printable(model.name)} version {model.version}: requests {said}" if said else ""


def _workers(found: Interval) -> Table:
    numbers = ("requests", "requests/s", "sleeps/s")
    table = draw.table(("worker", "pool", "state", *numbers), right=("worker", *numbers))
    for w in found.workers:
        rates = (draw.rate(w.requests_per_s), draw.rate(w.sleeps_per_s))
        pool = w.pool if w.lent_by is None else f"{w.pool} (lent by {w.lent_by})"
        draw.row(table, str(w.pid), pool, w.state, f"{w.requests:,}", *rates)
    return table


_LATENCIES = ("count", "p50", "p99", "max")


def _models(found: Interval) -> Table:
    numbers = ("version", "requests/s", "in flight", "unanswered")
    table = draw.table(("model", *numbers, "stage", *_LATENCIES), right=(*numbers, *_LATENCIES))
    for m in found.models:
        name = m.name if len(found.pools) < 2 else f"{m.pool}/{m.name}"
        if m.device:
            taken = ", ".join(f"{path} {count:,}" for path, count in m.paths.items() if count)
            name += f" on {m.device}, {m.path}" + (f" ({taken})" if taken else "")
        cells = [name, f"{m.version}{'*' if m.current else ' '}", draw.rate(m.requests_per_s), f"{m.in_flight}",
                 f"{m.failed + m.cancelled + m.expired:,}"]  # fmt: skip
        _stage_rows(
            table, cells, m.stages, ("queue", "run", "copy", "wake", "total") if m.current else ("queue", "run", "copy")
        )
    return table


def _clients(found: Interval) -> Table:
    numbers = ("requests/s", "in flight", "bytes")
    table = draw.table(("client", "user", *numbers, "stage", *_LATENCIES), right=("client", *numbers, *_LATENCIES))
    for c in found.clients:
        pool = "" if len(found.pools) < 2 else f" {c.pool}"
        cells = [f"{c.pid}{pool}", str(c.uid), draw.rate(c.requests_per_s), str(c.in_flight), draw.size(c.bytes)]
        # A BPF program has no clock of ours: of its calls there is what the workers saw.
        _stage_rows(table, cells, c.stages, ("queue", "run") if "queue" in c.stages else ("wake", "total"))
    return table


def _stage_rows(table: Table, cells: list[str], stages: Mapping[str, Histogram], names: tuple[str, ...]) -> None:
    """A line per stage; what it belongs to stands on the first."""
    for name in names:
        h = stages[name]
        latencies = [draw.micros(value) for value in (h.p50_us, h.p99_us, h.max_us)] if h.count else ["-"] * 3
        draw.row(table, *cells, name, f"{h.count:,}", *latencies)
        cells = [""] * len(cells)
