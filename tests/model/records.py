"""The records of core/host/pool.cpp: run queue, free list, counts, and what rebuilds them after a death.

Part of the model in dispatch.py; every statement that changes memory is a step, because the one who takes it may
die after it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .operation import BrokenError, Memory, Op, Steps, act, call, look

NOBODY = -1
TERMINAL = ("done", "failed", "cancelled", "expired")
LIVE = ("queued", "running")


@dataclass(frozen=True)
class Entry:
    """What a client puts into the ring."""

    slot: int
    generation: int = 1
    priority: int = 0
    refused: bool = False  # resolve() finds no such model, until it is loaded


NOTHING = Entry(-1)  # in a record that is free


@dataclass(frozen=True)
class Dispatch:
    entries: tuple[Entry, ...]
    published: int  # so many are in the ring at the start; the client adds each other one when its slot is quiescent
    records: int = 2
    workers: int = 2
    limit: int = 2
    deaths: int = 1
    idempotent: bool = False
    cancelled: tuple[int, ...] = ()  # entries that the client cancels at some moment
    closes: bool = False  # the host closes the session at some moment
    expires: bool = False  # the host finds at some moment that the deadlines of what is queued have passed
    loads: bool = False  # the host loads the model at some moment
    capacity: int = 8  # of the ring
    broken: frozenset[str] = frozenset()

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"role": 0, "ring": self.entries[: self.published], "tail": 0}
        memory |= {"heap": (NOBODY,) * self.records, "heap_size": 0, "free_head": 1, "next_sequence": 0, "active": 0}
        memory |= {"session": "open", "head": 0, "in_flight": 0}  # SessionLine
        memory |= {"ends": (), "runs": (), "refused": frozenset(), "dead": (), "loaded": False}  # ghosts
        for slot in {entry.slot for entry in self.entries}:
            memory["word", slot] = (0, "free", True)
            memory["released", slot] = 0
        for i in range(self.records):
            memory["state", i] = (0, "free")
            memory["worker", i] = NOBODY
            memory["request", i] = (NOTHING, -1, 0, -1)  # entry, ring_position, attempts, sequence
            memory["next", i] = i + 2 if i + 1 < self.records else 0
        return memory


def put(name: Hashable, value: Any, text: str) -> Op:
    return act(lambda m: m.__setitem__(name, value), text)


def bump(name: Hashable, amount: int) -> Op:
    return act(lambda m: m.__setitem__(name, m[name] + amount), f"{name} {amount:+}")


def _before(m: Memory, a: int, b: int) -> bool:
    """Pool::before()."""
    (left, _, _, first), (right, _, _, second) = m["request", a], m["request", b]
    if left.priority != right.priority:
        return bool(left.priority > right.priority)
    return bool(first < second)


def heap_push(d: Dispatch, record: int) -> Steps:
    at = yield look(lambda m: m["heap_size"], "at = header.heap_size")
    yield act(lambda m: _set(m, at, record), f"heap[{at}] = {record}")
    yield put("heap_size", at + 1, f"heap_size = {at + 1}")
    while at > 0 and "heap_push() does not sift" not in d.broken:
        parent = (at - 1) // 2
        up = yield look(
            lambda m, at, parent: _before(m, m["heap"][at], m["heap"][parent]), "before(at, parent)", at, parent
        )
        if not up:
            break
        yield call(swap, at, parent)
        at = parent


def heap_pop(d: Dispatch) -> Steps:
    size, top, last = yield look(lambda m: (m["heap_size"], m["heap"][0], m["heap"][m["heap_size"] - 1]), "heap[0]")
    if size == 0:
        return NOBODY
    yield act(lambda m: _set(m, 0, last), f"heap[0] = {last}")
    yield act(lambda m: _shrink(m, size - 1), f"heap_size = {size - 1}")
    at = 0
    while True:
        best = yield look(lambda m, at: _best(m, at, size - 1), "the best of at and its children", at)
        if best == at:
            return top
        yield call(swap, at, best)
        at = best


def _shrink(m: Memory, size: int) -> None:
    m["heap_size"] = size
    m["heap"] = (*m["heap"][:size], *(NOBODY,) * (len(m["heap"]) - size))  # beyond it nobody looks: fewer states


def _best(m: Memory, at: int, size: int) -> int:
    best = at
    for child in (2 * at + 1, 2 * at + 2):
        if child < size and _before(m, m["heap"][child], m["heap"][best]):
            best = child
    return best


def swap(a: int, b: int) -> Steps:
    """std::swap(heap[a], heap[b]): two stores."""
    left, right = yield look(lambda m: (m["heap"][a], m["heap"][b]), "std::swap")
    yield act(lambda m: _set(m, a, right), f"heap[{a}] = {right}")
    yield act(lambda m: _set(m, b, left), f"heap[{b}] = {left}")


def _set(m: Memory, at: int, record: int) -> None:
    m["heap"] = (*m["heap"][:at], record, *m["heap"][at + 1 :])


def set_state(m: Memory, record: int, to: str, generations: int = 0) -> None:
    m["state", record] = (m["state", record][0] + generations, to)
    if to == "free":
        m["request", record] = (NOTHING, -1, 0, -1)  # nobody looks at it any more: fewer states


def end_record(m: Memory, record: int, to: str) -> bool:
    """Pool::end_record(): a compare-and-swap loop."""
    if m["state", record][1] not in LIVE:
        return False
    set_state(m, record, to)
    return True


def give_back(d: Dispatch, record: int) -> Steps:
    in_flight = yield look(lambda m: m["in_flight"], "line.in_flight")
    if in_flight > 0:
        yield bump("in_flight", -1)  # if (line.in_flight > 0) --line.in_flight; the version's likewise
    # state.store(low_half(generation + 1, free))
    yield act(lambda m: set_state(m, record, "free", 1), f"record {record} is free")
    free_head = yield look(lambda m: m["free_head"], "header.free_head")
    yield put(("next", record), free_head, f"next_free = {free_head}")  # record.next_free = header.free_head;
    yield put("free_head", record + 1, f"free_head = {record + 1}")  # header.free_head = index + 1;
    yield bump("active", -1)  # header.active.store(... - 1);


def rebuild(d: Dispatch) -> Steps:
    """Pool::rebuild(): everything that follows from the records' words."""
    yield act(lambda m: _shrink(m, 0), "heap_size = 0")
    if "the free list is not rebuilt" not in d.broken:
        yield put("free_head", 0, "free_head = 0")
    if "in_flight is not counted again" not in d.broken:
        yield put("in_flight", 0, "in_flight = 0")  # of every session and version
    active = 0
    for i in reversed(range(d.records)):  # for (std::uint32_t i = record_count; i-- > 0;)
        state, runner, position = yield look(
            lambda m, i: (m["state", i][1], m["worker", i], m["request", i][1]), f"record {i}", i
        )
        forgotten = state in TERMINAL and runner == NOBODY
        if state == "free" or forgotten:
            if forgotten:
                yield act(set_state, f"record {i} is free", i, "free")
            if "the free list is not rebuilt" not in d.broken:
                free_head = yield look(lambda m: m["free_head"], "header.free_head")
                yield put(("next", i), free_head, f"next_free = {free_head}")  # record.next_free = header.free_head;
                yield put("free_head", i + 1, f"free_head = {i + 1}")  # header.free_head = i + 1;
            continue
        active += 1
        yield act(_raise_sequence, "if (record.sequence >= header.next_sequence) ...", i)
        if "in_flight is not counted again" not in d.broken:
            yield bump("in_flight", 1)  # poke(line.in_flight, line.in_flight + 1);
        head = yield look(lambda m: m["head"], "line.head")
        if position == head and "the head is not repaired" not in d.broken:
            # if (record.ring_position == line.head) poke(line.head, ...);
            yield put("head", head + 1, f"line.head = {head + 1}")
        if state == "queued":
            if "a queued record keeps its worker" not in d.broken:
                yield put(("worker", i), NOBODY, "record.worker = nobody")
            yield call(heap_push, d, i)
    yield put("active", active, f"active = {active}")  # header.active.store(active);


def _raise_sequence(m: Memory, record: int) -> None:
    m["next_sequence"] = max(m["next_sequence"], m["request", record][3] + 1)


def prune(d: Dispatch) -> Steps:
    """Pool::prune(), which only the host calls: it does not matter where it dies."""
    for record in (yield look(lambda m: m["heap"][: m["heap_size"]], "the run queue")):
        state = yield look(lambda m, r: m["state", r][1], f"record {record}", record)
        if state != "queued":
            yield call(give_back, d, record)
    yield act(_prune, "keeps what is queued")


def _prune(m: Memory) -> None:
    heap = m["heap"][: m["heap_size"]]
    kept = [record for record in heap if m["state", record][1] == "queued"]
    kept.sort(key=lambda record: (-m["request", record][0].priority, m["request", record][3]))  # a heap, sifted down
    m["heap_size"] = len(kept)
    m["heap"] = (*kept, *(NOBODY,) * (len(m["heap"]) - len(kept)))


def check(d: Dispatch, m: Memory) -> None:
    """Whenever the role is free: the free list, the run queue and the counts say what the records say."""
    states = {i: m["state", i][1] for i in range(d.records)}
    chain: list[int] = []
    at = m["free_head"]
    while at and at - 1 not in chain:
        chain.append(at - 1)
        at = m["next", at - 1]
    free = {i for i, state in states.items() if state == "free"}
    if at or set(chain) != free:
        raise BrokenError(f"the free list holds {chain}{' for ever' if at else ''}, free are {sorted(free)}")
    heap = m["heap"][: m["heap_size"]]
    queued = {i for i, state in states.items() if state == "queued"}
    if len(set(heap)) != len(heap) or not queued <= set(heap) or set(heap) & free:
        raise BrokenError(f"the run queue holds {heap}, queued are {sorted(queued)}, free {sorted(free)}")
    if any(_before(m, heap[i], heap[(i - 1) // 2]) for i in range(1, len(heap))):
        raise BrokenError(f"the run queue {heap} is not in order")
    if m["in_flight"] != d.records - len(free) or m["active"] != m["in_flight"]:
        raise BrokenError(f"in_flight is {m['in_flight']}, active {m['active']}, not free are {d.records - len(free)}")
    if any(m["request", i][1] >= m["head"] for i in states if i not in free):
        raise BrokenError("a record exists whose entry is still to be taken")
