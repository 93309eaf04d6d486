"""Reading: encodings, folders, pipes, limits, and every kind of file that is not text."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from teal.demo.text import decode, read
from teal.errors import InvalidArgument, NotFound

TEXT = "Grüße: das Dach zahlt der Vermieter. Ends here.\n"


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"],
)
def test_reads_any_encoding(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(TEXT.encode(encoding))
    reading = read([str(file)])
    assert reading.passages[0].text == TEXT.strip()
    assert bool(reading.notes) == (encoding == "cp1252")  # a guess is said


def test_a_damaged_utf8_file_stays_utf8() -> None:
    text, encoding = decode("äöü ".encode() * 9 + b"\xff\xfe end")
    assert encoding == "utf-8 with errors"
    assert text.startswith("äöü")


def test_a_character_cut_by_the_bound_is_dropped() -> None:
    assert decode("aä".encode()[:2], complete=False) == ("a", "utf-8")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x00\x01\x02" * 99, "binary"),
        (bytes(range(256)) * 9, "binary"),
        (b"%PDF-1.7 ...", "pdftotext"),
        (b"PK\x03\x04....", "zip"),
        (b"\x1f\x8b....", "zcat"),
        (b"\x7fELF....", "program"),
    ],
)
def test_a_file_that_is_not_text_is_an_error(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "a.md"
    file.write_bytes(content)
    with pytest.raises(InvalidArgument, match=said):
        read([str(file)])


def test_in_a_folder_it_is_skipped_and_noted(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"\0\1\2")
    (tmp_path / "b.txt").write_text("words\n")
    (tmp_path / "c.py").write_text("not looked at\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "d.md").write_text("nor this\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    reading = read([str(tmp_path)])
    assert [one.text for one in reading.passages] == ["words"]
    assert "a.md" in reading.notes[0]


@pytest.mark.parametrize("content", ["", " \n\t\n", "***\n---\n"])
def test_an_empty_file_is_an_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.txt"
    file.write_text(content)
    with pytest.raises(InvalidArgument, match=r"no text to search in .*a\.txt"):
        read([str(file)])


def test_an_empty_file_among_others_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").write_text("words\n")
    reading = read([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    assert len(reading.passages) == 1
    assert "a.txt is empty" in reading.notes[0]


def test_a_folder_without_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no text file in it"):
        read([str(tmp_path)])


@pytest.mark.parametrize("path", ["/no/such/file", "x" * 5000])
def test_a_file_that_does_not_exist(path: str) -> None:
    with pytest.raises(NotFound, match="cannot read"):
        read([path])


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_name_that_no_file_can_have(path: str) -> None:
    with pytest.raises(InvalidArgument, match="file name"):
        read([path])


def test_a_name_that_cannot_be_printed(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/a\xff\x1b.txt"
    with open(file, "wb") as out:
        out.write(b"words\n")
    read([os.fsdecode(file)]).passages[0].source.encode()


def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(InvalidArgument, match="binary"):
        read(["/dev/zero"])


def test_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("words in a pipe\n" * 20_000,))
    writer.start()
    reading = read([str(pipe)])
    writer.join()
    assert reading.bytes_known == 16 * 20_000


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"words\n")))
    assert read(["-"]).passages[0].source == "standard input"
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidArgument, match="closed"):
        read(["-"])


def test_the_limit_is_kept_and_said(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(
            "A paragraph with enough words in it to stand alone, as they do. " * 3 + "\n\n" * 2
        )
    reading = read([str(tmp_path)], limit=2)
    assert len(reading.passages) == 2
    assert not reading.complete
    assert len([note for note in reading.notes if "--passages" in note]) == 1
    assert read([str(tmp_path)], limit=100).complete


def test_a_hundred_megabytes(tmp_path: Path) -> None:
    file = tmp_path / "big.txt"
    line = b"A line of an endless log that says the same again and again, as logs do.\n\n"
    with open(file, "wb") as out:
        out.write(line * 50_000)
        out.truncate(100_000_000)
    reading = read([str(file)], limit=50)
    assert len(reading.passages) == 50
    assert reading.bytes_known == 100_000_000
    assert "stopped at" in reading.notes[0]
