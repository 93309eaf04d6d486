"""`teal stat --agents`: agents live, by the differences of two looks as in cli/interval.py."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from teal.cli import agent_tables, draw, options
from teal.cli.interval import added
from teal.host.agent_view import AgentStatistics, agent_of, label
from teal.host.host import Host

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentInterval:
    """agents: histograms and staged hits (and so their rate) of the interval, other counters since their agent sat
    down; rates: events a second by pool; since_start: there was no earlier look."""

    interval_s: float
    since_start: bool
    agents: tuple[AgentStatistics, ...]
    rates: Mapping[str, float]


def between(before: Raw | None, after: Raw) -> AgentInterval:
    """The interval between two looks; None: since each agent sat down."""
    if before is not None and before["pid"] != after["pid"]:
        before = None
    elapsed = max(1e-9, after["uptime_s"] - (0.0 if before is None else before["uptime_s"]))
    earlier = {} if before is None else {label(name, a): s for a in before["agents"] for name, s in a["seats"].items()}
    agents, rates = [], {}
    for raw in after["agents"]:
        seats = {}
        for name, seat in raw["seats"].items():
            old = earlier.get(label(name, raw))
            if old is None or old["incarnation"] != seat["incarnation"]:
                seats[name] = seat
                continue
            rates[label(name, raw)] = max(0, seat["desk"]["events"] - old["desk"]["events"]) / elapsed
            stages = {stage: added(old["stages"].get(stage, ()), buckets) for stage, buckets in seat["stages"].items()}
            seats[name] = {
                **seat,
                "stages": stages,
                "age": added(old["age"], seat["age"]),
                "hits": seat["hits"] - old["hits"],
                "misses": seat["misses"] - old["misses"],
            }
        agents.append(agent_of({**raw, "seats": seats}))
    return AgentInterval(elapsed, before is None, tuple(agents), rates)


def show(host: str | None, *, once: bool, interval: float | None, step: float, watch: bool, as_json: bool) -> None:
    """The command; see `teal stat --help`."""
    with options.reach(host) as reached, contextlib.suppress(KeyboardInterrupt):
        if watch:
            for found in _intervals(reached, step):
                draw.emit(dataclasses.asdict(found))
        elif once or as_json or not sys.stdout.isatty():
            first = (
                between(None, reached._raw_statistics()) if interval is None else next(_intervals(reached, interval))
            )
            if as_json:
                draw.emit(dataclasses.asdict(first))
            else:
                draw.console().print(agent_tables.drawn(list(first.agents), first.rates))
        else:
            _live(reached, step)


def _intervals(host: Host, seconds: float) -> Iterator[AgentInterval]:
    before = host._raw_statistics()
    while True:
        time.sleep(seconds)
        after = host._raw_statistics()
        yield between(before, after)
        before = after


def _live(host: Host, seconds: float) -> None:
    from rich.live import Live

    first = between(None, host._raw_statistics())
    with Live(agent_tables.drawn(list(first.agents)), console=draw.console(), auto_refresh=False) as live:
        for found in _intervals(host, seconds):
            live.update(agent_tables.drawn(list(found.agents), found.rates), refresh=True)
