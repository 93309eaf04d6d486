"""Passages: pieces of a text, small enough for the model to read whole, that still say where they came from.

Theory of operation. Lines are grouped into blocks (a paragraph, a list, a table, a fenced piece of code), blocks into
units (a sentence of prose, an item of a list, a line of a table or of code), and units are packed in order until a
passage is full.
Rules: a passage never crosses a heading; a paragraph that fills a third of a passage ends it, shorter ones are joined;
a paragraph cut in two repeats its last sentence at the start of the second half, if that sentence is short, because the
answer to a question often stands across the cut. The trail of headings is kept beside the text and read with it.
Everything is one pass over the lines, so a text of one endless line costs what its length costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

SIZE = 96  # tokens, as estimated by `weight`: the model reads 256, but shorter passages are found more precisely
_OVERLAP = SIZE // 4  # a last sentence up to this weight is repeated after a cut
_JOINT = 0.25  # the character between two units
_ENOUGH = SIZE // 3  # a paragraph of at least this weight ends its passage

_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*\s*$")
_UNDERLINE = re.compile(r"(=+|-{3,})\s*$")
_FENCE = re.compile(r"\s*(```|~~~)")
_ITEM = re.compile(r"\s*([-*+•]|\d{1,3}[.)])\s+")
_RULE = re.compile(r"\s*([-*_])(\s*\1){2,}\s*$")
_TABLE_RULE = re.compile(r"\s*\|?[\s:|-]*-[\s:|-]*\|[\s:|-]*$")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"')\]]?\s+(?=\S)|(?<=[。！？])")  # noqa: RUF001
_ENDS_SENTENCE = re.compile(r"[.!?…。！？:][\"')\]*_`]*$")  # noqa: RUF001
_LATIN_END = "\u024f"  # beyond it (Greek, Cyrillic, CJK …) this model's vocabulary has about one token a character

# Text is printed to a terminal: control characters and direction overrides in it must not reach that terminal.
_UNPRINTABLE = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], " ")
del _UNPRINTABLE[0x0A]


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text. `line` counts from 1; `heading` is the trail "Title > Section", empty outside any."""

    source: str
    line: int
    heading: str
    text: str

    @property
    def embedded(self) -> str:
        """What the model reads: a passage alone often does not say what it is about, its headings do."""
        return f"{self.heading}: {self.text}" if self.heading else self.text


@dataclass(frozen=True, slots=True)
class _Unit:
    line: int
    text: str
    weight: float
    joint: str  # what stands between it and the unit before it: " " in prose, "\n" in lists, tables and code


@dataclass(slots=True)
class _Block:
    """Lines that belong together, each with its number; `code` where they were fenced."""

    code: bool
    lines: list[tuple[int, str]] = field(default_factory=list)


def weight(text: str) -> float:
    """Estimated tokens of `text` in the model's vocabulary (four Latin characters a token, one of any other)."""
    if text.isascii():
        return len(text) / 4
    return sum(0.25 if character <= _LATIN_END else 1.0 for character in text)


def printable(text: str) -> str:
    """`text` with nothing in it that a terminal would obey or an encoder would refuse."""
    return text.translate(_UNPRINTABLE).encode("utf-8", "replace").decode("utf-8")


def split(text: str, source: str) -> Iterator[Passage]:
    """The passages of a text or markdown document, in order, made as they are asked for."""
    for heading, blocks in _sections(text):
        for line, piece in _packed(blocks):
            if any(character.isalnum() for character in piece):
                yield Passage(source, line, heading, piece)


def _sections(text: str) -> Iterator[tuple[str, list[_Block]]]:
    """(heading trail, blocks) of each part between headings."""
    trail: list[tuple[int, str]] = []
    blocks = [_Block(False)]
    for number, line in enumerate(_lines(text), 1):
        block = blocks[-1]
        heading = None if block.code else _heading(line, block)
        if heading is not None:
            yield _trail(trail), blocks
            trail = [entry for entry in trail if entry[0] < heading[0]] + [heading]
            blocks = [_Block(False)]
        elif _FENCE.match(line):
            blocks.append(_Block(not block.code))
        elif block.code:
            block.lines.append((number, line))
        elif not line.strip() or _RULE.match(line):
            blocks.append(_Block(False))
        elif not _TABLE_RULE.match(line):
            block.lines.append((number, line))
    yield _trail(trail), blocks


def _lines(text: str) -> Iterator[str]:
    """Lines as an editor counts them (str.splitlines also splits at form feeds and Unicode separators)."""
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        yield printable(line.replace("\t", "    ")).rstrip()


def _heading(line: str, block: _Block) -> tuple[int, str] | None:
    """(level, title) where `line` is a heading or underlines the one line of `block`, which it then takes away."""
    match = _HEADING.match(line)
    if match:
        return len(match[1]), match[2]
    if len(block.lines) == 1 and _UNDERLINE.match(line) and not _ITEM.match(block.lines[0][1]):
        title = block.lines.pop()[1].strip()
        return (1 if line.startswith("=") else 2), title
    return None


def _trail(trail: list[tuple[int, str]]) -> str:
    return " > ".join(title for _, title in trail if title)[:200]


def _units(block: _Block) -> Iterator[_Unit]:
    """The units of a block, in order; none heavier than SIZE."""
    paragraph: list[tuple[int, str]] = []  # lines of prose, or of one item, that have not been cut up yet
    for number, line in block.lines:
        verbatim = block.code or line.lstrip().startswith("|") or (line.startswith("    ") and not paragraph)
        item = not verbatim and _ITEM.match(line) is not None
        if (verbatim or item) and paragraph:
            yield from _sentences(paragraph)
            paragraph = []
        if verbatim:
            yield from _fitting(number, line, "\n")
        else:
            paragraph.append((number, line))
    if paragraph:
        yield from _sentences(paragraph)


def _sentences(lines: list[tuple[int, str]]) -> Iterator[_Unit]:
    """The sentences of a paragraph, or of an item of a list, which stays whole where it fits."""
    item = _ITEM.match(lines[0][1]) is not None
    whole = " ".join(line.strip() for _, line in lines)
    if item and weight(whole) <= SIZE:
        yield _Unit(lines[0][0], whole, weight(whole), "\n")
        return
    held, held_line, joint = "", 0, "\n" if item else " "
    for number, line in lines:
        parts = [part.strip() for part in _SENTENCE_END.split(line) if part.strip()]
        for place, part in enumerate(parts):
            held, held_line = (f"{held} {part}", held_line) if held else (part, number)
            if place + 1 < len(parts) or _ENDS_SENTENCE.search(held[-8:]) or weight(held) > SIZE:
                yield from _fitting(held_line, held, joint)
                held, joint = "", " "
    if held:
        yield from _fitting(held_line, held, joint)


def _fitting(line: int, text: str, joint: str) -> Iterator[_Unit]:
    """`text` as one unit, or cut between words (inside a word that alone is too long) into units that fit."""
    if weight(text) <= SIZE:
        yield _Unit(line, text, weight(text), joint)
        return
    held: list[str] = []
    total = 0.0
    for word in text.split():
        for start in range(0, len(word), SIZE):
            piece = word[start : start + SIZE]
            cost = weight(piece) + _JOINT
            if held and total + cost > SIZE:
                yield _Unit(line, " ".join(held), total, joint)
                held, total = [], 0.0
            held.append(piece)
            total += cost
    if held:
        yield _Unit(line, " ".join(held), total, joint)


def _packed(blocks: list[_Block]) -> Iterator[tuple[int, str]]:
    """(line, text) of each passage of one section."""
    held: list[_Unit] = []
    total = 0.0
    for block in blocks:
        inside = 0.0  # weight of this block in the passage being packed
        for unit in _units(block):
            if held and total + unit.weight + _JOINT > SIZE:
                yield held[0].line, _joined(held)
                held = _repeated(held[-1], inside, unit)
                total = inside = sum(one.weight + _JOINT for one in held)
            if inside == 0.0:
                unit = _Unit(unit.line, unit.text, unit.weight, "\n")
            held.append(unit)
            total += unit.weight + _JOINT
            inside += unit.weight + _JOINT
        if held and inside >= _ENOUGH:
            yield held[0].line, _joined(held)
            held, total = [], 0.0
    if held:
        yield held[0].line, _joined(held)


def _repeated(last: _Unit, inside: float, following: _Unit) -> list[_Unit]:
    """What a passage repeats of the one before it: its last sentence, when the cut is inside a paragraph and it fits.

    `inside` is the weight of the cut paragraph before the cut: where it is the last sentence alone, repeating that
    would repeat a whole passage's end for nothing.
    """
    within = last.joint == " " and inside > last.weight + _JOINT
    short = last.weight <= _OVERLAP and last.weight + following.weight + 2 * _JOINT <= SIZE
    return [last] if within and short else []


def _joined(units: list[_Unit]) -> str:
    return units[0].text.strip() + "".join(unit.joint + unit.text.rstrip() for unit in units[1:])
