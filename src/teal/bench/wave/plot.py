"""Pictures of a bench, as SVG: lines over a logarithmic axis, and bars. The same bytes for the same data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 40, 50
# Readable on white and on black: lines and words take the reader's own choice where the viewer knows it.
STYLE = (
    "<style>text{fill:#444}.axis{stroke:#bbb}"
    "@media (prefers-color-scheme:dark){text{fill:#ccc}.axis{stroke:#555}}</style>"
)
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
Points = Sequence[tuple[float, float]]


def lines(title: str, across: str, up: str, data: Sequence[tuple[str, Points]]) -> str:
    """x linear from 0, y logarithmic; one line for each name. Raises ValueError where no point is above 0."""
    values = [y for _, points in data for _, y in points if y > 0]
    if not values:
        raise ValueError(f"{title}: nothing to draw")
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    most = max(x for _, points in data for x, _ in points) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(y) - low) / (high - low)
        return LEFT + x / most * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    shapes = []
    for power in range(low, high + 1):
        _, y = at(0, 10.0**power)
        shapes += [_axis(LEFT, y, WIDTH - RIGHT, y)]
        shapes += [_text(LEFT - 6, y + 4, f"{10.0**power:g}", "end")]
    for step in range(6):
        x, _ = at(most * step / 5, 10.0**low)
        shapes.append(_text(x, HEIGHT - BOTTOM + 16, f"{most * step / 5:.0%}", "middle"))
    for number, (name, points) in enumerate(data):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in points if y > 0)
        shapes.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = TOP + 14 + 18 * number
        shapes += [_line(WIDTH - RIGHT + 12, y - 4, WIDTH - RIGHT + 34, y - 4, colour, 2)]
        shapes += [_text(WIDTH - RIGHT + 40, y, name)]
    return _picture(title, across, up, shapes)


def bars(title: str, up: str, data: Sequence[tuple[str, float]]) -> str:
    """One horizontal bar for each name, with its value and how many times the first one that is.

    Raises ValueError where there is nothing, or the first value is not above 0.
    """
    most = max((value for _, value in data), default=0.0)
    if most <= 0 or data[0][1] <= 0:
        raise ValueError(f"{title}: nothing to draw")
    left, each = 190, (HEIGHT - TOP - BOTTOM) / len(data)
    shapes = []
    for number, (name, value) in enumerate(data):
        y, width = TOP + number * each, value / most * (WIDTH - left - 110)
        shapes.append(
            f'<rect x="{left}" y="{y + 3:.1f}" width="{width:.1f}" height="{each - 6:.1f}" fill="{COLOURS[0]}"/>'
        )
        shapes += [
            _text(left - 8, y + each / 2 + 4, name, "end"),
            _text(left + width + 6, y + each / 2 + 4, f"{value:,.0f} ({value / data[0][1]:.1f}×)"),  # noqa: RUF001
        ]
    return _picture(title, up, "", shapes)


def _picture(title: str, across: str, up: str, shapes: Sequence[str]) -> str:
    words = [_text(LEFT, 22, title, "start", 15), _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, across, "middle")]
    if up:
        middle = (TOP + HEIGHT - BOTTOM) / 2
        words.append(
            f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">{escape(up)}</text>'
        )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        f' font-size="12">{STYLE}'
    )
    return "\n".join([head, *words, *shapes, "</svg>"]) + "\n"


def _axis(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="axis" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
