"""docs/features.md has every row, in order, with a state; what does not exist yet has nothing to try."""

from __future__ import annotations

import re
from pathlib import Path

from teal.bench import call, laika
from teal.bench.duck import bench as duck
from teal.bench.models import promises as models
from teal.bench.wave import bench as wave
from teal.cli import _COMMANDS

BARS = call.PROMISES | laika.PROMISES | models.PROMISES | wave.PROMISES | duck.PROMISES
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "features.md"
ROWS = [
    f"{letter}{number}"
    for letter, last in (("J", 13), ("D", 10), ("L", 20), ("W", 19))
    for number in range(1, last + 1)
]


def rows() -> list[list[str]]:
    found = re.findall(r"^\| ([JDLW]\d+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return [[number, *rest.split(" | ")] for number, rest in found]


def test_every_row_is_there() -> None:
    assert [row[0] for row in rows()] == ROWS
    assert all(len(row) == 5 for row in rows())


def test_states() -> None:
    sections = set(re.findall(r"^### ([JDLW]\d+)$", PAGE.read_text(), re.MULTILINE))
    for number, _, state, trial, measured in rows():
        assert re.match(r"works|part: |not yet", state), f"{number}: {state}"
        if state.startswith("not yet"):
            assert (trial, measured) == ("–", "–"), number  # noqa: RUF001
        else:
            assert trial != "–", f"{number}: how can one try it?"  # noqa: RUF001
        if "below" in trial:
            assert f"](#{number.lower()})" in trial
            assert number in sections
        for bar in re.findall(r"`([\w.]+)`", measured):
            assert bar in BARS, f"{number}: no bar {bar}"


def test_what_is_typed_exists() -> None:
    for typed in re.findall(r"`([^`\n]+)`", PAGE.read_text()):
        for path in re.findall(r"\b(?:examples|tests)/[\w/.]+", typed):
            assert (ROOT / path).exists(), typed
        for command in re.findall(r"(?:^|\s)teal ([a-z]+)", typed):
            assert command in _COMMANDS, typed
