"""What `teal agent stat` and `teal stat --agents` draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from teal.cli import draw

if TYPE_CHECKING:
    from rich.console import Group

    from teal.host.agent_view import AgentStatistics, SeatStatistics

_LATENCIES = ("count", "p50", "p99", "max")


def drawn(agents: list[AgentStatistics], rates: Mapping[str, float] | None = None) -> Group:
    """``rates``: events a second by pool, where they were measured."""
    from rich.console import Group
    from rich.text import Text

    if not agents:
        return Group(Text("no agents: pools schedule in their own order"))
    parts: list[object] = [_heads(agents)]
    for agent in agents:
        if agent.why:
            parts.append(Text(draw.printable(f"{', '.join(agent.pools)}: {agent.state}: {agent.why}")))
    seats = [seat for agent in agents for seat in agent.seats.values()]
    if seats:
        parts += [Text(), _decided(seats, rates or {}), Text(), _odd(seats), Text(), _stages(seats)]
        parts += [Text(line) for seat in seats for line in (*_settings(seat), _effort(seat), *_refusals(seat))]
    return Group(*parts)  # type: ignore[arg-type]


def _heads(agents: list[AgentStatistics]) -> object:
    from teal.cli.agent import agents_table

    return agents_table(agents)


def _decided(seats: list[SeatStatistics], rates: Mapping[str, float]) -> object:
    """What waits, and who decided."""
    numbers = ("queued", "runnable", "unread", "events/s", "decisions", "carried out", "refused", "staged hits",
               "local")  # fmt: skip
    table = draw.table(("pool", *numbers), right=numbers)
    for seat in seats:
        rate = draw.rate(rates[seat.pool]) if seat.pool in rates else "-"
        hits = f"{seat.hit_rate:.1%}" if seat.hits + seat.misses else "-"
        counts = (seat.decisions, seat.completed, sum(seat.refused.values()))
        waits = (f"{count:,}" for count in (seat.queued, seat.runnable, seat.unread))
        draw.row(table, seat.pool, *waits, rate, *(f"{count:,}" for count in counts), hits, f"{seat.local:,}")
    return table


def _odd(seats: list[SeatStatistics]) -> object:
    """Requests that left in the middle, and what went on between the two besides messages and decisions."""
    counts = ("preempted", "yielded", "asked", "asks in vain", "asks refused", "bells", "rings", "lost", "rescans",
              "errors")  # fmt: skip
    table = draw.table(("pool", *counts, "heart"), right=(*counts, "heart"))
    for seat in seats:
        cells = (f"{getattr(seat, name.replace(' ', '_')):,}" for name in counts)
        draw.row(table, seat.pool, *cells, f"{seat.heart_ms:.1f} ms")
    return table


def _stages(seats: list[SeatStatistics]) -> object:
    table = draw.table(("pool", "stage", *_LATENCIES), right=_LATENCIES)
    for seat in seats:
        name = seat.pool
        for stage, h in [*seat.stages.items(), ("staleness", seat.staleness)]:
            latencies = [draw.micros(value) for value in (h.p50_us, h.p99_us, h.max_us)] if h.count else ["-"] * 3
            draw.row(table, name, stage, f"{h.count:,}", *latencies)
            name = ""
    return table


def _settings(seat: SeatStatistics) -> list[str]:
    if not seat.settings:
        return []
    return [draw.printable(f"{seat.pool}: {'  '.join(f'{name}={value}' for name, value in seat.settings.items())}")]


def _effort(seat: SeatStatistics) -> str:
    gangs = f"; gangs {seat.groups:,}, refused {seat.groups_refused:,}" if seat.groups + seat.groups_refused else ""
    asks = f"; asked {seat.asks:,} times to leave" if seat.asks else ""
    return draw.printable(
        f"{seat.pool}: waited looking {seat.spins:,}, asleep {seat.sleeps:,}; rings "
        f"spared {seat.rings_spared:,}; {seat.batches:,} batches of {seat.batched:,} decisions{gangs}{asks}"
    )


def _refusals(seat: SeatStatistics) -> list[str]:
    if not seat.refused:
        return []
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(seat.refused.items(), key=lambda x: -x[1]))
    bugs = f"; {seat.bugs:,} of them only a wrong agent meets" if seat.bugs else ""
    return [draw.printable(f"{seat.pool}: refused decisions: {reasons}{bugs}")]
