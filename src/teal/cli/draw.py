"""Drawing that the commands share: numbers as people read them, signatures, tables, JSON.

Names inside a model file are whatever its author wrote. Nothing is printed before `printable` has taken the control
characters out, and nothing is given to rich as markup: brackets are text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from teal.host.records import ModelInfo, TensorSpec

_WIDE = 160  # columns, where there is no terminal that would say


def printable(text: str) -> str:
    """The text with control characters (terminal escapes) shown instead of obeyed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def micros(value: float) -> str:
    """A latency in microseconds: 120 ns, 12.3 µs, 1.64 ms, 2.10 s."""
    scaled, units = value * 1000, ["ns", "µs", "ms", "s"]
    while scaled >= 999.5 and len(units) > 1:
        scaled /= 1000
        units.pop(0)
    digits = 0 if scaled >= 99.95 or units[0] == "ns" else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{digits}f} {units[0]}"


def lasted(seconds: float) -> str:
    """How long something took or has been up: 0.35 s, 12 s, 3 min 05 s, 2 h 03 min, 4 d 02 h."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = int(seconds)
    for above, below, size, small in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            return f"{whole // size} {above} {whole % size // small:02d} {below}"
    return f"{whole} s"


def size(nbytes: int) -> str:
    """Bytes in powers of 1024: 96 B, 21.9 MiB."""
    scaled, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while scaled >= 1024 and len(units) > 1:
        scaled /= 1024
        units.pop(0)
    return f"{nbytes} B" if units[0] == "B" else f"{scaled:.1f} {units[0]}"


def rate(per_second: float) -> str:
    """Requests a second: 0, 3.2, 1,234."""
    return f"{per_second:,.0f}" if per_second >= 100 or per_second == 0 else f"{per_second:.1f}"


def tensor(spec: TensorSpec) -> str:
    """``input_ids int64[batch, seq]``."""
    if spec.like is not None:
        return printable(f"{spec.name} like {spec.like}")
    shape = "[…]" if spec.shape is None else f"[{', '.join('?' if e is None else str(e) for e in spec.shape)}]"
    return printable(f"{spec.name} {spec.dtype or 'any'}{shape}") + (" (optional)" if spec.optional else "")


def signature(info: ModelInfo) -> str:
    """Inputs and outputs in one line."""
    return " → ".join(", ".join(tensor(spec) for spec in side) for side in (info.inputs, info.outputs))


def console() -> Console:
    """Where results go. Characters that stdout's encoding lacks become question marks: no reason to fail."""
    from rich.console import Console

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, emoji=False, markup=False)


def table(columns: Sequence[str], *, right: Sequence[str] = (), title: str | None = None) -> Table:
    """An empty table without lines; numbers (``right``) stand at the right of their column, never folded nor cut."""
    from rich.text import Text

    from teal.cli.fitting import Fitting

    drawn = Fitting(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="")
    drawn.title = None if title is None else Text(title)
    for name in columns:
        if name in right:
            drawn.add_column(name, justify="right", no_wrap=True)
        else:
            drawn.add_column(name, overflow="fold")
    return drawn


def row(drawn: Table, *cells: str) -> None:
    """Adds a row of plain text."""
    from rich.text import Text

    drawn.add_row(*(Text(cell) for cell in cells))


def emit(document: Any, *, indent: int | None = None) -> None:
    """One JSON value on stdout; strict JSON, so that every parser takes it."""
    click.echo(json.dumps(document, indent=indent, allow_nan=False))


@contextmanager
def progress(what: str, *, silent: bool = False) -> Iterator[Callable[[str], None]]:
    """Says on stderr what takes so long: a spinner on a terminal, nothing elsewhere. Yields what changes the words."""
    if silent or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(what)) as status:
        yield lambda words: status.update(Text(words))
