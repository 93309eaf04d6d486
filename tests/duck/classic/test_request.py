"""What is a request of the classic protocol, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teal.duck.classic.request import SHAPES, parse, write_request

DIGEST = b"0123456789abcdefABCDEF" + b"7" * 42
EXAMPLES = {"n": b"17", "s": b"-3", "k": b"elf", "d": DIGEST}


def example(name: str) -> bytes:
    return b" ".join([name.encode(), *(EXAMPLES[letter] for letter in SHAPES[name])])


@pytest.mark.parametrize("name", SHAPES)
def test_each_name(name: str) -> None:
    found = parse(example(name))
    assert found is not None
    assert (found.name, found.words) == (name, example(name))
    assert found.numbers == tuple(-3 if letter == "s" else 17 for letter in SHAPES[name] if letter in "ns")
    assert parse(example(name) + b"\n\0") == found  # as text is ended elsewhere
    assert parse(example(name) + b" 1") is None
    assert parse(b" " + example(name)) is None
    for i, letter in enumerate(SHAPES[name], 1):
        words = example(name).split(b" ")
        assert parse(b" ".join(words[:-1])) is None
        for wrong in (b"", b"x", b"+1", b"1.0", b"0x10", b"1_0", b"9" * 21, "٣".encode(), DIGEST[1:], b"ELF"):
            changed = [*words[:i], wrong, *words[i + 1 :]]
            assert parse(b" ".join(changed)) is None, (letter, wrong)


def test_numbers_have_64_bits() -> None:
    assert parse(b"clear-buffer 0 %d" % (2**64 - 1)) is not None
    assert parse(b"clear-buffer 0 %d" % 2**64) is None


@given(st.integers(0, 2**64 - 1), st.binary(max_size=1500))
def test_write(offset: int, data: bytes) -> None:
    found = parse(write_request(offset, data))
    assert found is not None
    assert (found.numbers, found.data) == ((offset,), data)
    assert found.words == b"write-buffer %d %d" % (offset, len(data))


def test_a_write_without_an_offset() -> None:
    assert parse(b"write-buffer 1234567") is None
    assert parse(b"write-buffer") is None


@given(st.binary(max_size=2000))
def test_any_bytes(datagram: bytes) -> None:
    found = parse(datagram)
    assert found is None or found.name in SHAPES or found.name == "write-buffer"


@given(st.sampled_from(sorted(SHAPES)), st.lists(st.binary(max_size=12), max_size=20))
def test_any_words(name: str, words: list[bytes]) -> None:
    found = parse(b" ".join([name.encode(), *words]))
    assert found is None or found.name in SHAPES
