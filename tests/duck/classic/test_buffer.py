"""The flat buffer: ranges, clearing at every alignment, comparison."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teal.duck.classic.buffer import PAGE, Buffer, overlap


@pytest.fixture
def buffer() -> Iterator[Buffer]:
    buffer = Buffer(4 * PAGE)
    yield buffer
    buffer.close()


def test_ranges(buffer: Buffer) -> None:
    assert buffer.has(0, buffer.nbytes)
    assert buffer.has(buffer.nbytes, 0)
    assert not buffer.has(buffer.nbytes + 1, 0)
    assert not buffer.has(1, buffer.nbytes)
    assert not buffer.has(2**64 - 1, 2)
    assert not buffer.has(1, 2**64 - 1)
    assert not buffer.has(-1, 1)


@pytest.mark.parametrize("offset", [0, 1, PAGE - 1, PAGE, PAGE + 1])
@pytest.mark.parametrize("length", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 3])
def test_clear(buffer: Buffer, offset: int, length: int) -> None:
    buffer.write(0, b"\x07" * buffer.nbytes)
    buffer.clear(offset, length)
    assert buffer.read(0, buffer.nbytes) == (
        b"\x07" * offset + bytes(length) + b"\x07" * (buffer.nbytes - offset - length)
    )


def test_clearing_gives_pages_back(buffer: Buffer) -> None:
    buffer.write(0, b"\x07" * buffer.nbytes)
    before = os.fstat(buffer.fd).st_blocks
    buffer.clear(PAGE, 2 * PAGE)
    assert (before - os.fstat(buffer.fd).st_blocks) * 512 == 2 * PAGE


def test_copy_compare_digest(buffer: Buffer) -> None:
    buffer.write(5, b"quack quack")
    buffer.copy(PAGE, 5, 11)
    assert buffer.same(5, PAGE, 11)
    buffer.write(16, b"!")
    assert not buffer.same(5, PAGE, 12)
    assert not buffer.same(5, PAGE + 1, 11)
    assert buffer.digest(5, 11) == hashlib.sha256(b"quack quack").hexdigest()


@given(*[st.integers(0, 12)] * 4)
def test_overlap(a: int, a_length: int, b: int, b_length: int) -> None:
    expected = bool(set(range(a, a + a_length)) & set(range(b, b + b_length)))
    assert overlap((a, a_length), (b, b_length)) == expected
