"""The form of every bench's result: one object with machine, versions, rows and bars.

    {"bench": "call", "machine": {...}, "versions": {...}, "settings": {...},
     "rows": [{"name", "group", "n", "p50_us", "p99_us", "p999_us", "note", "cpu_s_per_1000", "j_per_1000"}, ...],
     "bars": [{"id", "value", "unit", "limit", "better", "ok", "se", "note"}, ...]}

A row is something measured; a percentile for which there are too few samples is null (the p-th needs at least 1/(1-p)
of them), and a row that could not be measured has n = 0 and says why in its note. A bar is a promise: `ok` is true or
false where it was measured, null where it was not, and then `note` says why; nothing is ever filled in. `se` is the
standard error of the value where it is an estimate over blocks. CPU seconds and joules per 1,000 calls are those of all
processes that took part, the bench's own work for each call included (`energy.py`); null where they were not measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .energy import Effort
from .lanes import Times

Better = Literal["lower", "higher"]
DIGITS = 3  # significant, in the table; JSON has all


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest sample that at least `share` of all are not above; None with fewer than 1/(1-share) samples."""
    if not ordered or len(ordered) * (1 - share) < 1 - 1e-9:
        return None
    return float(ordered[max(0, math.ceil(share * len(ordered)) - 1)])


@dataclass(frozen=True)
class Row:
    """One thing measured; times in microseconds."""

    name: str
    group: str
    n: int
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    note: str = ""
    cpu_s_per_1000: float | None = None
    j_per_1000: float | None = None


@dataclass(frozen=True)
class Bar:
    """One promise and what was found."""

    id: str
    value: float | None
    unit: str
    limit: float
    better: Better
    ok: bool | None
    se: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Promise:
    """What a bar asks for."""

    limit: float
    better: Better
    unit: str

    def kept_by(self, value: float) -> bool:
        return value <= self.limit if self.better == "lower" else value >= self.limit


def row_of(
    name: str, group: str, samples_ns: Sequence[int], note: str = "", effort: Effort | None = None, calls: int = 0
) -> Row:
    """A row of samples in ns, in any order; effort: of `calls` calls."""
    ordered = sorted(sample / 1e3 for sample in samples_ns)
    half, most, nearly_all = (percentile(ordered, share) for share in (0.5, 0.99, 0.999))
    cpu = joules = None
    if effort is not None and calls > 0:
        cpu = effort.cpu / calls * 1000
        joules = None if effort.joules is None else effort.joules / calls * 1000
    return Row(name, group, len(ordered), half, most, nearly_all, note, cpu, joules)


@dataclass
class Report:
    """A bench's result while it grows."""

    bench: str
    promises: dict[str, Promise]
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def add(
        self,
        name: str,
        group: str,
        samples_ns: Sequence[int],
        note: str = "",
        effort: Effort | None = None,
        calls: int = 0,
    ) -> Row:
        """Adds a row of samples in ns, and what `calls` calls cost, and returns it."""
        row = row_of(name, group, samples_ns, note, effort, calls)
        self.rows.append(row)
        return row

    def add_times(self, name: str, group: str, times: Times, note: str = "") -> Row:
        """A row of everything that take_turns() measured of one entry."""
        return self.add(name, group, times.all(), note, times.effort, times.calls)

    def absent(self, name: str, group: str, reason: str) -> None:
        """Adds a row that says why there is nothing to show."""
        self.rows.append(Row(name, group, 0, note=reason))

    def judge(
        self, bar: str, value: float | None, *, se: float | None = None, note: str = "", ok: bool | None = None
    ) -> None:
        """Adds a bar's value. Without a value it is not judged, and note must say why; ok=False overrules a kept one.

        Raises KeyError for a bar that this bench does not promise, ValueError for one judged twice or without reason.
        """
        promise = self.promises[bar]
        if any(each.id == bar for each in self.bars):
            raise ValueError(f"bar {bar} is judged twice")
        if value is None and not note:
            raise ValueError(f"bar {bar} has no value and no reason")
        kept = None if value is None else promise.kept_by(value) and ok is not False
        self.bars.append(Bar(bar, value, promise.unit, promise.limit, promise.better, kept, se, note))

    def judge_rest(self, reason: str) -> None:
        """Adds every promised bar that nobody judged, unmeasured, and puts all in the order of the promises."""
        judged = {bar.id for bar in self.bars}
        for bar in self.promises:
            if bar not in judged:
                self.judge(bar, None, note=reason)
        order = list(self.promises)
        self.bars.sort(key=lambda each: order.index(each.id))

    def as_dict(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "rows": [asdict(row) for row in self.rows],
            "bars": [asdict(bar) for bar in self.bars],
        }

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def as_table(self) -> RenderableType:
        """The same for reading: machine, rows by group, bars."""
        return Group(self._heading(), self._row_table(), self._bar_table())

    def _heading(self) -> Text:
        known = {key: value for key, value in self.machine.items() if isinstance(value, str | int | float)}
        machine = ", ".join(f"{key} {value}" for key, value in known.items())
        jitter = self.machine.get("jitter", {})
        floor = "; ".join(
            f"{core}: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
            for core, figures in jitter.items()
        )
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return Text(f"{machine}\njitter floor: {floor}\n{versions}\n")

    def _row_table(self) -> Table:
        energy = any(row.j_per_1000 is not None for row in self.rows)
        columns = (
            "measured",
            "n",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "CPU s/1000",
            *(("J/1000",) if energy else ()),
            "note",
        )
        table = Table(*columns, title=f"teal bench {self.bench}")
        for column in table.columns[1:-1]:
            column.justify = "right"
        group = None
        for row in self.rows:
            if group not in (None, row.group):
                table.add_section()
            group = row.group
            figures = (row.p50_us, row.p99_us, row.p999_us, row.cpu_s_per_1000, *((row.j_per_1000,) if energy else ()))
            table.add_row(row.name, str(row.n), *map(shown, figures), row.note)
        return table

    def _bar_table(self) -> Table:
        table = Table("bar", "value", "± se", "must be", "", "note")
        for bar in self.bars:
            sign = "≤" if bar.better == "lower" else "≥"
            mark = {True: "[green]kept[/]", False: "[red]MISSED[/]", None: "[yellow]not measured[/]"}[bar.ok]
            limit = f"{sign} {bar.limit:g} {bar.unit}"
            table.add_row(bar.id, shown(bar.value), shown(bar.se), limit, mark, bar.note)
        return table


def shown(value: float | None) -> str:
    """A number with a few significant digits, never in exponents."""
    if value is None:
        return "–"  # noqa: RUF001
    if value == 0:
        return "0"
    decimals = max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}"
