"""Reading text that anyone may hand over: files, folders, standard input, in any encoding, of any size.

Theory of operation. Every source is opened once and read up to a bound, decoded (a byte order mark decides, then UTF-8,
then UTF-16 by its zero bytes, then Windows-1252, which can read anything), and split into passages until the limit on
passages is reached. Nothing is left out in silence: what was skipped, guessed or not read stands in `Reading.notes`.
A source that the caller named and that cannot be text is an error; one met inside a folder is skipped and noted.
"""

from __future__ import annotations

import codecs
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from teal.demo.passage import Passage, printable, split
from teal.errors import InvalidArgument, NotFound

TEXT_ENDINGS = frozenset({".md", ".markdown", ".mdown", ".txt", ".text", ".rst", ".adoc", ".org"})
BYTES_PER_PASSAGE = 4096  # a bound on reading: no passage is longer than about 400 bytes, the rest allows for blanks
_LARGEST_READ = 64 << 20
_MAGIC = {
    b"%PDF": "a PDF: make text of it first, for example with `pdftotext FILE`",
    b"PK\x03\x04": "a zip archive (as .docx, .odt and .epub are): save it as plain text first",
    b"\x1f\x8b": "compressed: pipe it in, `zcat FILE | teal demo --text -`",
    b"\x7fELF": "a program",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
}
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
          (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))  # fmt: skip


@dataclass(slots=True)
class Reading:
    """What was read; `bytes_known` is what the named files hold, read or not."""

    passages: list[Passage] = field(default_factory=list)
    files: int = 0
    bytes_known: int = 0
    complete: bool = True
    notes: list[str] = field(default_factory=list)


class _NotText(Exception):
    """Why a source cannot be read as text; becomes an error or a note, as the source was named or met."""


def read(paths: Sequence[str | os.PathLike[str]], *, limit: int = 1000) -> Reading:
    """The first `limit` passages of files, folders and standard input ("-"), in the order given.

    Raises NotFound for a path that does not exist, InvalidArgument for one that is not text or cannot be read, and when
    there is no text in any of them.
    """
    reading = Reading()
    for place, path in enumerate(paths):
        _read_one(os.fspath(path), place, limit, reading)
    if not reading.passages:
        named = ", ".join(shown(path) for path in paths) or "nothing"
        why = f" ({reading.notes[0]})" if reading.notes else ""
        raise InvalidArgument(
            f"no text to search in {named}{why}: expected at least one line with words in it", path="$.text"
        )
    return reading


def shown(path: str | os.PathLike[str]) -> str:
    """A path that can be printed, whatever bytes the file system let into it; relative when that is shorter."""
    whole = os.fspath(path)
    near = os.path.relpath(whole) if os.path.isabs(whole) else whole
    return printable(os.fsencode(min(near, whole, key=len)).decode("utf-8", "replace").replace("\n", " "))


def _read_one(path: str, place: int, limit: int, reading: Reading) -> None:
    where = f"$.text[{place}]"
    if path == "-":
        if sys.stdin is None:
            raise InvalidArgument("standard input is closed: pipe a text in, or name a file", path=where)
        data = sys.stdin.buffer.read(_read_bound(limit) + 1)
        reading.bytes_known += len(data)
        _take(data, "standard input", limit, reading, where)
        return
    if "\0" in path or not path:
        raise InvalidArgument("a file name is empty or has a NUL in it: give the path of a text file", path=where)
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise NotFound(f"cannot read {shown(path)}: {error.strerror}. Give --text an existing file or folder") from None
    if not stat.S_ISDIR(mode):
        try:
            _take_file(path, limit, reading, where)
        except OSError as error:
            raise InvalidArgument(f"cannot read {shown(path)}: {error.strerror}", path=where) from None
        return
    before = len(reading.passages)
    for file in _walk(path):
        try:
            _take_file(file, limit, reading, None)
        except OSError as error:
            reading.notes.append(f"skipped {shown(file)}: {error.strerror}")
    if len(reading.passages) == before and reading.complete:
        endings = " ".join(sorted(TEXT_ENDINGS))
        raise InvalidArgument(f"the folder {shown(path)} has no text file in it (looked for {endings})", path=where)


def _walk(folder: str) -> Iterator[str]:
    """Text files below `folder`, sorted; hidden folders and links to folders are not entered."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "node_modules", "__pycache__")))
        for name in sorted(files):
            whole = os.path.join(parent, name)
            if Path(name).suffix.lower() in TEXT_ENDINGS and os.path.isfile(whole):
                yield whole


def _read_bound(limit: int) -> int:
    return min(_LARGEST_READ, limit * BYTES_PER_PASSAGE)


def _take_file(path: str, limit: int, reading: Reading, where: str | None) -> None:
    if len(reading.passages) >= limit:
        reading.bytes_known += os.stat(path).st_size
        _stop(shown(path), None, limit, reading)
        return
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        data = _read_up_to(file.fileno(), _read_bound(limit) + 1)
    reading.bytes_known += max(size, len(data))  # a pipe has no size
    _take(data, shown(path), limit, reading, where)


def _read_up_to(descriptor: int, bound: int) -> bytes:
    """Up to `bound` bytes, also from a pipe, which gives them in pieces."""
    pieces: list[bytes] = []
    while bound > 0 and (piece := os.read(descriptor, min(bound, 1 << 20))):
        pieces.append(piece)
        bound -= len(piece)
    return b"".join(pieces)


def _take(data: bytes, name: str, limit: int, reading: Reading, where: str | None) -> None:
    """Add the passages of one source; `where` is its place in the arguments, None for a file met in a folder."""
    cut = len(data) > _read_bound(limit)
    try:
        text, encoding = decode(data, complete=not cut)
    except _NotText as reason:
        if where is None:
            reading.notes.append(f"skipped {name}: it is {reason}")
            return
        raise InvalidArgument(f"{name} is not text: it is {reason}", path=where) from None
    reading.files += 1
    if encoding == "cp1252":
        reading.notes.append(f"{name} is not UTF-8: read as Windows-1252")
    elif encoding == "utf-8 with errors":
        reading.notes.append(f"{name} has bytes that are not UTF-8: they show as \ufffd")
    if not text.strip():
        reading.notes.append(f"{name} is empty")
        return
    for passage in split(text, name):
        if len(reading.passages) >= limit:
            _stop(name, passage.line, limit, reading)
            return
        reading.passages.append(passage)
    if cut:
        _stop(name, text.count("\n") + 1, limit, reading)


def _stop(name: str, line: int | None, limit: int, reading: Reading) -> None:
    """Note, once, that the rest of the text is not searched."""
    if reading.complete:
        place = f"{name} line {line}" if line is not None else name
        reading.notes.append(f"stopped at {place}: {limit} passages are the limit (--passages raises it)")
    reading.complete = False


def decode(data: bytes, *, complete: bool = True) -> tuple[str, str]:
    """(text, encoding) of `data`; `complete` is False where the data was cut and may end inside a character."""
    for magic, meaning in _MAGIC.items():
        if data.startswith(magic):
            raise _NotText(meaning)
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _decoded(data[len(mark) :], encoding, complete, "replace"), encoding
    wide = _wide(data[:4096])
    if wide:
        return _decoded(data, wide, complete, "replace"), wide
    controls = data[:65536].translate(None, bytes(range(32, 256)) + b"\t\n\r\f\x1b")
    if b"\0" in data or len(controls) > len(data[:65536]) // 10:
        raise _NotText("binary data: give a text or markdown file")
    try:
        return _decoded(data, "utf-8", complete, "strict"), "utf-8"
    except UnicodeDecodeError:
        text = _decoded(data, "utf-8", complete, "replace")
    bad = text.count("\ufffd")
    if sum(not character.isascii() for character in text) > 2 * bad:
        return text, "utf-8 with errors"  # more good sequences than bad bytes: a damaged UTF-8 file
    return data.decode("cp1252", "replace"), "cp1252"


def _decoded(data: bytes, encoding: str, complete: bool, errors: str) -> str:
    return codecs.getincrementaldecoder(encoding)(errors).decode(data, final=complete)


def _wide(sample: bytes) -> str | None:
    """UTF-16 without a mark: text in it has nearly every other byte zero, always on the same side."""
    pairs = len(sample) // 2
    if pairs < 2:
        return None
    low, high = sample[0 : pairs * 2 : 2].count(0), sample[1 : pairs * 2 : 2].count(0)
    if high * 10 > pairs * 7 and low * 50 < pairs:
        return "utf-16-le"
    if low * 10 > pairs * 7 and high * 50 < pairs:
        return "utf-16-be"
    return None
