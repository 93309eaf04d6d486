"""core/queue/ring.hpp and core/queue/status.hpp, statement by statement, with two slots and positions that wrap.

Positions are counted modulo 8 here (2^32 there). A message is two words, so that a torn one can be told. Both
parts run in the weak model too: their release stores are all that orders them where stores may overtake each other.
"""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from .explore import CounterexampleError, Model, Outcome, Process, explore
from .operation import (
    Steps,
    call,
    choose,
    fail,
    goto,
    load,
    store,
    when,
)

CAPACITY = 2
MASK = CAPACITY - 1
WRAP = 8
MESSAGES = 6


def ahead(position: int, known_tail: int) -> int:
    return (position - known_tail) % WRAP


# ---- RingProducer ----------------------------------------------------------------------------------------------------


def fill(broken: str, head: int, known_tail: int, message: int) -> Steps:
    """RingProducer::fill(). Returns (filled, head_, known_tail_)."""
    bound = MASK + 1 if broken == "full is one too late" else MASK
    if ahead(head, known_tail) > bound:  # if (head_ - known_tail_ > mask_) {
        known_tail = yield load("tail")  # known_tail_ = header_->tail.load(acquire);
        if broken == "full is not looked at again":
            known_tail = head
        if ahead(head, known_tail) > bound:  # if (head_ - known_tail_ > mask_) {
            return False, head, known_tail  # overflow.fetch_add(1); return false; }}
    slot = head & MASK
    yield store(("low", slot), message)  # memcpy(slots_[head_ & mask_].payload, payload, ...);
    yield store(("high", slot), message)
    return True, (head + 1) % WRAP, known_tail  # ++head_; return true;


def publish(broken: str, published: int, head: int) -> Steps:
    """RingProducer::publish()."""
    while published != head:  # for (; published_ != head_; ++published_)
        sequence = (published + 1) % WRAP if broken != "no laps" else (published & MASK) + 1
        release = broken != "publish without release"
        # sequence.store(published_ + 1, release);
        yield store(("sequence", published & MASK), sequence, release=release)
        published = (published + 1) % WRAP


def producer(broken: str, head: int, known_tail: int, sent: int) -> Steps:
    """push() of one message, or fill() of two and one publish(); a full ring is tried again when the tail has moved."""
    if sent == MESSAGES:
        return
    batch = yield choose(1, 2)
    start = head
    if broken == "published before it is filled":
        yield call(publish, broken, start, (start + 1) % WRAP)
    for _ in range(min(batch, MESSAGES - sent)):
        filled, head, known_tail = yield call(fill, broken, head, known_tail, sent + 1)
        if not filled:
            break
        sent += 1
    yield call(publish, broken, start, head)
    if start == head:
        # the caller gets would_block and comes again after some request ended
        yield when(lambda m: bool(m["tail"] != known_tail), "waits for the tail to move")
    yield goto(producer, broken, head, known_tail, sent)


# ---- RingConsumer ----------------------------------------------------------------------------------------------------


def consumer(broken: str, position: int, got: int) -> Steps:
    """RingConsumer::pop() as Pool::drain() does it: peek(), copy, retire()."""
    slot = position & MASK
    if got == MESSAGES:
        sequence = yield load(("sequence", slot))
        if sequence == (position + 1) % WRAP:
            yield fail("a message more than was sent")
        return
    wanted = (position + 1) % WRAP if broken != "no laps" else slot + 1
    sequence = yield load(("sequence", slot))  # slot.sequence.load(acquire) == position_ + 1
    if sequence != wanted if broken != "any sequence will do" else sequence == 0:
        # nullptr; the worker looks again after news (test_sleep.py)
        yield when(lambda m: bool(m["sequence", slot] != sequence), "waits for a message")
        yield goto(consumer, broken, position, got)
    if broken == "retired before it is read":
        yield store("tail", (position + 1) % WRAP, release=True)
    low = yield load(("low", slot))  # memcpy(payload, message, ...);
    high = yield load(("high", slot))
    if (low, high) != (got + 1, got + 1):
        yield fail(f"message {got + 1} was read as ({low}, {high})")
    position = (position + 1) % WRAP  # ++position_;
    if broken != "retired before it is read":
        yield store("tail", position, release=True)  # header_->tail.store(position_, release);
    yield goto(consumer, broken, position, got + 1)


def ring(broken: str = "", order: str = "tso", start: int = 5) -> Outcome:
    """`start`: the first position; 5 makes it wrap at the third message."""
    memory: dict[Hashable, int] = {"tail": start}
    for slot in range(CAPACITY):
        # Zeroed memory, or what the lap before `start` left.
        memory["sequence", slot] = 0 if start == 0 else start - (start - 1 - slot) % CAPACITY
        memory["low", slot] = memory["high", slot] = 0
    waiters = [
        Process("producer", producer, (broken, start, start, 0)),
        Process("consumer", consumer, (broken, start, 0)),
    ]
    return explore(Model(waiters, memory, order))


@pytest.mark.parametrize("order", ["tso", "weak"])
@pytest.mark.parametrize("start", [0, 5])
def test_every_message_arrives_once_whole_and_in_order(order: str, start: int) -> None:
    assert ring(order=order, start=start).ends > 0


@pytest.mark.parametrize(
    ("broken", "order"),
    [
        ("full is one too late", "tso"),  # an unread slot is overwritten
        ("full is not looked at again", "tso"),
        ("published before it is filled", "tso"),
        ("retired before it is read", "tso"),
        ("any sequence will do", "tso"),
        ("no laps", "tso"),  # the sequence number says which slot, not which lap
        ("publish without release", "weak"),
    ],
)
def test_a_broken_ring_is_found(broken: str, order: str) -> None:
    with pytest.raises(CounterexampleError):
        ring(broken, order)


# ---- StatusEntry -----------------------------------------------------------------------------------------------------


def status_writer(broken: str, value: int, mortal_end: int) -> Steps:
    """StatusEntry::write() of (1, 1), then (2, 2)."""
    count = yield load("count")  # before = count.load(relaxed);
    if broken != "never odd":
        yield store("count", count | 1)  # count.store(before | 1, relaxed);
    release = broken != "words without release"
    yield store(("word", 0), value, release=release)  # words[i].store(copy[i], release);
    yield store(("word", 1), value, release=release)
    if broken != "never even":
        yield store("count", (count | 1) + 1, release=True)  # count.store((before | 1) + 1, release);
    if value < mortal_end:
        yield goto(status_writer, broken, value + 1, mortal_end)


def status_reader(broken: str, least: int) -> Steps:
    """StatusEntry::read(), up to the last value; what is read never goes back."""
    before = yield load("count")  # before = count.load(acquire);
    if before & 1:
        yield when(lambda m: bool(m["count"] != before), "waits for the writer")  # return false; the reader tries again
        yield goto(status_reader, broken, least)
    low = yield load(("word", 0))  # copy[i] = words[i].load(acquire);
    high = yield load(("word", 1))
    after = yield load("count")  # count.load(relaxed) != before
    if after != before and broken != "count is not read again":
        yield goto(status_reader, broken, least)
    if low != high or low < least or low * 2 != before:
        yield fail(f"read ({low}, {high}) under count {before}")
    if low < 2:
        yield when(lambda m: bool(m["count"] != before), "waits for the next value")
        yield goto(status_reader, broken, low)


def status(broken: str = "", order: str = "tso") -> Outcome:
    processes = [
        Process("writer", status_writer, (broken, 1, 2)),
        *(Process(f"reader{i}", status_reader, (broken, 0)) for i in range(2)),
    ]
    return explore(Model(processes, {"count": 0, ("word", 0): 0, ("word", 1): 0}, order))


@pytest.mark.parametrize("order", ["tso", "weak"])
def test_a_status_entry_is_read_whole(order: str) -> None:
    assert status(order=order).ends > 0


@pytest.mark.parametrize(
    ("broken", "order"),
    [
        ("never odd", "tso"),
        ("never even", "tso"),
        ("count is not read again", "tso"),
        ("words without release", "weak"),
    ],
)
def test_a_broken_status_entry_is_found(broken: str, order: str) -> None:
    with pytest.raises(CounterexampleError):
        status(broken, order)


def test_a_writer_that_dies_leaves_the_entry_odd() -> None:
    """read() then fails for ever, which the caller has to know; it never returns half of a write."""
    model = Model(
        [
            Process("writer", status_writer, ("", 1, 1), mortal=True),
            Process("reader", status_reader, ("", 0), daemon=True),
        ],
        {"count": 0, ("word", 0): 0, ("word", 1): 0},
        deaths=1,
    )
    assert explore(model).ends > 1
