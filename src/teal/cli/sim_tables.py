"""How a simulation's result is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from teal.cli import draw

if TYPE_CHECKING:
    from rich.table import Table

    from teal.sim import Result

_PERCENTILES = (50.0, 99.0, 99.9)
_PLAIN = ("preempted", "yielded", "reruns", "turned_away", "local", "taken_over", "refused", "rescans", "fallbacks", "upgrades")


def latencies(results: Sequence[Result]) -> Table:
    """A row for each policy and type: what became of its requests, and how long they took."""
    columns = ("policy", "type", "came", "done", "expired", "late", "mean", *(f"p{p:g}" for p in _PERCENTILES), "share")
    table = draw.table(columns, right=columns[2:])
    for result in results:
        busy = sum(each.busy_s for each in result.types.values()) or 1.0
        for number, each in enumerate(result.types.values()):
            cells = [draw.printable(result.policy) if number == 0 else "", draw.printable(each.name)]
            cells += [f"{count:,}" for count in (each.arrived, each.done, each.expired, each.missed)]
            times = (each.mean_us, *each.percentile_us(_PERCENTILES))
            cells += ["-" if math.isnan(us) else draw.micros(us) for us in times]
            draw.row(table, *cells, f"{each.busy_s / busy:.1%}")
    return table


def counters(result: Result) -> list[str]:
    """Lines: what happened, what broke, and what was wrong."""
    counted = [f"{result.counters[name]:,} {name.replace('_', ' ')}" for name in _PLAIN if result.counters[name]]
    lasted = f"{draw.lasted(result.virtual_s)} in {draw.lasted(result.real_s)}, workers busy {result.utilisation:.0%}"
    lines = [f"{result.policy}, seed {result.seed}: {', '.join([lasted, *counted])}"]
    if met := [f"{count:,} {name.replace('_', ' ')}" for name, count in result.met.items() if count]:
        lines.append(f"  faults: {', '.join(met)}")
    lines += [f"  violation: {text}" for text in result.violations]
    lines += [f"  breach: {text}" for text in result.breaches]
    if result.breached > len(result.breaches):
        lines.append(f"  … {result.breached - len(result.breaches):,} more like it")
    if result.policy_error:
        lines += [f"  {line}" for line in result.policy_error.splitlines()]
    return [draw.printable(line) for line in "\n".join(lines).splitlines()]
