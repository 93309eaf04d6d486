"""Tables on terminals of any width: no number is cut, and each row can be told from the next."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from teal.cli import draw


def drawn(width: int) -> list[str]:
    numbers = ("decisions", "carried out", "refused", "heart")
    table = draw.table(("pool", "policy", *numbers), right=numbers)
    draw.row(table, "default", "shinjuku:quantum=50us,slo=1ms", "1,234,567", "1,234,566", "1", "12.3 ms")
    draw.row(table, "bulk", "fifo", "89", "89", "0", "0.1 ms")
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, markup=False).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [24, 30, 40, 60, 80])
def test_nothing_is_cut_and_nothing_too_wide(width: int) -> None:
    lines = drawn(width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    for whole in ("1,234,567", "1,234,566", "12.3 ms", "0.1 ms", "decisions", "carried out", "heart"):
        assert whole in text
    assert "…" not in text


def test_each_part_says_of_whom_it_speaks() -> None:
    lines = drawn(40)
    heads = [line for line in lines if line.startswith("pool")]
    assert len(heads) > 1
    assert sum(line.startswith("default") for line in lines) == len(heads)
    assert sum(line.startswith("bulk") for line in lines) == len(heads)


def test_with_room_it_is_one_table() -> None:
    assert len(drawn(160)) == 3
