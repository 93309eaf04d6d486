"""A table for terminals of any width: where its columns have no room beside each other they stand below each other.

Theory of operation: text may be folded, down to a few columns, and a number may not be cut: half a number is another
number. When what must be there is wider than the terminal, the columns are dealt out to several tables one below the
other, each of which begins with the first column, so that a row can be told from the next.
"""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_FOLDED = 12  # columns that folded text is left at least
_GAP = 2  # columns between two


class Fitting(Table):
    """Filled like any other table; without lines around its cells."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needs = [_need(column, console, options) for column in self.columns]
        parts = _dealt(needs, options.max_width)
        if len(parts) == 1:
            yield from super().__rich_console__(console, options)
            return
        for number, part in enumerate(parts):
            if number:
                yield Text()
            yield self._part(part, first=number == 0)

    def _part(self, indexes: list[int], *, first: bool) -> Table:
        part = Table(box=None, pad_edge=False, header_style=self.header_style, title_justify=self.title_justify,
                     title_style=self.title_style, title=self.title if first else None)  # fmt: skip
        columns = [self.columns[i] for i in indexes]
        for column in columns:
            part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow)
        for cells in zip(*(column.cells for column in columns), strict=True):
            part.add_row(*cells)
        return part


def _need(column: Column, console: Console, options: ConsoleOptions) -> int:
    """How narrow it may get."""
    cells = (column.header, *column.cells)
    widest = max(Measurement.get(console, options.update(max_width=10_000), cell).maximum for cell in cells)
    return widest if column.no_wrap else min(widest, _FOLDED)


def _dealt(needs: list[int], width: int) -> list[list[int]]:
    """Indexes of columns for each table: as many as have room, at least one beside the first."""
    parts: list[list[int]] = [[0]]
    for index, need in enumerate(needs[1:], 1):
        part = parts[-1]
        taken = sum(needs[i] + _GAP for i in part)
        if len(part) > 1 and taken + need > width:
            parts.append([0, index])
        else:
            part.append(index)
    return parts
