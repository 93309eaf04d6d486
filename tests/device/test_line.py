"""The client's side of a line, against a kernel played by the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from teal import _core
from teal.device import MappedRegion
from teal.errors import InvalidArgument

DONE, INVALID, FAILED, PARKED, LOST, LATE = range(6)
GENERATION, STATUS, STATE = 16, 17, 18
SOON = 2_000_000_000


@pytest.fixture
def words() -> np.ndarray:
    return MappedRegion.create(4096).bytes.view(np.uint32)


def answered_later(action: Callable[[], None]) -> threading.Thread:
    def act() -> None:
        time.sleep(0.02)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize("offset", [4096, 4096 - 64, 1, 8, (1 << 64) - 64])
def test_a_line_must_lie_in_its_memory_and_be_aligned(offset: int) -> None:
    with pytest.raises(InvalidArgument, match="device line: offset"):
        _core.DeviceLine(MappedRegion.create(4096).bytes, offset)


def test_a_line_needs_writable_memory() -> None:
    with pytest.raises((BufferError, ValueError)):
        _core.DeviceLine(bytes(4096))


def test_generations_go_up_and_wrap(words: np.ndarray) -> None:
    line = _core.DeviceLine(words)
    words[0] = 0xFFFFFFFE
    assert line.ask() == 0xFFFFFFFF
    assert line.ask() == 0
    assert line.asked == 0


def test_no_kernel_is_said_at_once(words: np.ndarray) -> None:
    assert _core.DeviceLine(words).run(SOON) == PARKED
    words[STATE] = 2
    assert _core.DeviceLine(words).run(SOON) == LOST


@pytest.mark.parametrize(
    ("status", "answer"), [(0, DONE), (1, INVALID), (2, FAILED), (3, FAILED), (0xFFFFFFFF, FAILED)]
)
def test_the_status_of_a_run(words: np.ndarray, status: int, answer: int) -> None:
    line = _core.DeviceLine(words)
    generation = line.ask()
    words[STATUS], words[GENERATION] = status, generation
    assert line.wait(generation, SOON) == answer


def test_an_answer_counts_also_after_parking(words: np.ndarray) -> None:
    line = _core.DeviceLine(words)
    generation = line.ask()
    words[GENERATION], words[STATE] = generation, 0
    assert line.wait(generation, SOON) == DONE


@pytest.mark.parametrize("spin_ns", [0, 1_000, 10_000_000_000])
def test_an_answer_that_comes_later_is_seen_spinning_and_napping(words: np.ndarray, spin_ns: int) -> None:
    line = _core.DeviceLine(words)
    words[STATE] = 1
    generation = line.ask()
    thread = answered_later(lambda: words.__setitem__(GENERATION, generation))
    assert line.wait(generation, SOON, spin_ns) == DONE
    thread.join()


@pytest.mark.parametrize(("state", "answer"), [(0, PARKED), (2, LOST), (77, LOST)])
def test_a_kernel_that_goes_while_waited_for_is_seen(words: np.ndarray, state: int, answer: int) -> None:
    line = _core.DeviceLine(words)
    words[STATE] = 1
    generation = line.ask()
    thread = answered_later(lambda: words.__setitem__(STATE, state))
    assert line.wait(generation, SOON) == answer
    thread.join()


def test_a_deadline_passes_and_the_request_stands(words: np.ndarray) -> None:
    line = _core.DeviceLine(words)
    words[STATE] = 1
    assert line.run(3_000_000) == LATE
    assert line.asked == 1
    words[GENERATION] = 1
    assert line.wait(1, SOON) == DONE


def test_old_answers_are_not_taken_for_new_ones(words: np.ndarray) -> None:
    line = _core.DeviceLine(words)
    words[STATE] = 1
    words[GENERATION] = line.ask()
    assert line.wait(line.ask(), 1_000_000) == LATE
