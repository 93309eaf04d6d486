"""Requests that wait for the ends of others, or for events (core/host/blocked.cpp), with the role's holder dying after
any statement, clients that cancel and signal, and workers that sleep.

Theory of operation: a request has the record of its number, so nothing is said here of free lists and counts
(dispatch.py). Events are lines that the client ends itself. Whoever sleeps does so on one bell. The order of the run
queue is arrival. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .explore import Model, Process
from .operation import (
    ALL,
    BrokenError,
    Memory,
    Op,
    Steps,
    act,
    add,
    call,
    goto,
    load,
    lock,
    look,
    next_dead,
    sleep,
    swap,
    unlock,
    wake,
    when,
)

NOBODY = -1
ENDS = ("done", "failed", "cancelled")
On = tuple[int, int]  # slot, generation


@dataclass(frozen=True)
class Request:
    """What a client puts into the ring; `after`: which ends it waits for."""

    slot: int
    generation: int = 1
    after: tuple[On, ...] = ()
    fails: bool = False

    @property
    def on(self) -> On:
        return self.slot, self.generation


@dataclass(frozen=True)
class Blocked:
    requests: tuple[Request, ...]
    events: tuple[int, ...] = ()  # slots that are lines of events
    given_up: tuple[int, ...] = ()  # of these: destroyed, not signalled
    silent: tuple[int, ...] = ()  # of these: never come
    cancelled: tuple[int, ...] = ()  # requests that the client cancels at some moment
    workers: int = 1
    deaths: int = 0
    broken: frozenset[str] = frozenset()

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"role": 0, "ring": (), "head": 0, "blocked": (), "heap": ()}
        memory |= {"need_wake": 0, "bell": 0}
        for slot in {request.slot for request in self.requests} | set(self.events):
            memory["line", slot] = (0, "none")
        for event in self.events:
            memory["line", event] = (1, "none")
        for i in range(len(self.requests)):
            memory["state", i] = "free"
            memory["worker", i] = NOBODY
        return memory | {"ran": (), "ends": frozenset(), "dead": ()}


def put(name: Hashable, value: Any, text: str) -> Op:
    return act(lambda m: m.__setitem__(name, value), text)


# ---- lines -----------------------------------------------------------------------------------------------------------


def _end(m: Memory, slot: int, generation: int, state: str) -> bool:
    """A compare-and-swap on the word: end_request(), cancel() or signal()."""
    seen, now = m["line", slot]
    if seen > generation or (seen == generation and now in ENDS):
        return False
    m["line", slot] = (generation, state)
    m["ends"] |= {(slot, generation, state)}
    return True


def _end_of(m: Memory, on: On) -> str | None:
    return next((state for *which, state in m["ends"] if tuple(which) == on), None)


def _came(b: Blocked, m: Memory, request: Request) -> str:
    """came()."""
    seen, now = m["line", request.slot]
    if "a cancelled one is not looked at" not in b.broken and (
        seen > request.generation or (seen == request.generation and now in ENDS)
    ):
        return "in vain"
    found = "well"
    for slot, generation in request.after:
        seen, now = m["line", slot]
        if seen == generation and now in ENDS:
            if now != "done" and "an end of any kind will do" not in b.broken:
                found = "badly"
        elif seen <= generation and found != "badly":
            found = "not yet"
    return found


# ---- Pool, under the role --------------------------------------------------------------------------------------------


def enter(b: Blocked) -> Steps:
    taken = yield lock("role")
    if taken == "after_death":
        yield call(repair, b)


def leave(b: Blocked) -> Steps:
    yield look(lambda m: _check(b, m), "the state is whole")
    yield unlock("role")


def _check(b: Blocked, m: Memory) -> None:
    lists = (*m["blocked"], *m["heap"])
    for i in range(len(b.requests)):
        state = m["state", i]
        if lists.count(i) != (1 if state == "queued" else 0):
            raise BrokenError(f"record {i} is {state}; blocked are {m['blocked']}, in the run queue {m['heap']}")


def repair(b: Blocked) -> Steps:
    """Pool::rebuild()."""
    if "blocked records are not put back" not in b.broken:
        yield put("blocked", (), "blocked_size = 0")
    yield put("heap", (), "heap_size = 0")
    for i, request in enumerate(b.requests):
        state, runner, head, position = yield look(_record, f"record {i}", i, request)
        if state in ENDS and runner == NOBODY:
            yield put(("state", i), "free", f"record {i} is free")  # forgotten
            continue
        if state == "free" or state in ENDS:
            continue
        if position == head:
            yield put("head", head + 1, f"line.head = {head + 1}")
        if state == "queued":
            yield put(("worker", i), NOBODY, "record.worker = nobody")
            if request.after and "repair() puts all into the run queue" not in b.broken:
                if "blocked records are not put back" not in b.broken:
                    yield call(block, i)
            else:
                yield act(_push, f"heap_push({i})", i)


def _record(m: Memory, i: int, request: Request) -> tuple[str, int, int, int]:
    position = m["ring"].index(request) if request in m["ring"] else -1
    return m["state", i], m["worker", i], m["head"], position


def _push(m: Memory, i: int) -> None:
    m["heap"] = tuple(sorted((*m["heap"], i)))


def block(i: int) -> Steps:
    yield act(lambda m: m.__setitem__("blocked", (*m["blocked"], i)), f"block({i})")


def drain(b: Blocked) -> Steps:
    while True:
        entry, head = yield look(lambda m: (dict(enumerate(m["ring"])).get(m["head"]), m["head"]), "ring.peek()")
        if entry is None:
            break
        i = b.requests.index(entry)
        yield put(("worker", i), NOBODY, "record.worker = nobody")
        yield put(("state", i), "queued", f"record {i} is queued")  # store_state(record, State::queued);
        if entry.after:
            yield call(block, i)
        else:
            yield act(_push, f"heap_push({i})", i)
        yield put("head", head + 1, f"line.head = {head + 1}")
    yield call(unblock, b)


def unblock(b: Blocked) -> Steps:
    """Pool::unblock()."""
    at = 0
    while True:
        i, state, found = yield look(lambda m, at: _look_at(b, m, at), f"blocked[{at}]", at)
        if i == NOBODY:
            return
        if found == "not yet":
            at += 1
            continue
        request = b.requests[i]
        if state == "queued" and found != "well":
            told = act(_end, f"end_queued({i})", request.slot, request.generation, "cancelled")
            if "the record ends first" not in b.broken:
                yield told
            yield put(("state", i), "cancelled", f"end_record({i})")
            if "the record ends first" in b.broken:
                yield told
        if "the hole is not filled" not in b.broken:
            yield act(_fill, f"blocked[{at}] = blocked[blocked_size - 1]", at)
        yield act(lambda m: m.__setitem__("blocked", m["blocked"][:-1]), "--blocked_size")
        if found == "well":
            yield act(_push, f"heap_push({i})", i)
        else:
            yield put(("state", i), "free", f"give_back({i})")


def _look_at(b: Blocked, m: Memory, at: int) -> tuple[int, str, str]:
    if at >= len(m["blocked"]):
        return NOBODY, "", ""
    i = m["blocked"][at]
    return i, m["state", i], _came(b, m, b.requests[i]) if m["state", i] == "queued" else "in vain"


def _fill(m: Memory, at: int) -> None:
    m["blocked"] = (*m["blocked"][:at], m["blocked"][-1], *m["blocked"][at + 1 :])


def pick(b: Blocked, me: int) -> Steps:
    while True:
        i = yield look(lambda m: m["heap"][0] if m["heap"] else NOBODY, "heap[0]")
        if i == NOBODY:
            return NOBODY
        yield act(lambda m: m.__setitem__("heap", m["heap"][1:]), "heap_pop()")
        request = b.requests[i]
        gone = yield look(
            lambda m, r: _came(b, m, Request(r.slot, r.generation)) == "in vain", "is_past(word)", request
        )
        if not gone:
            break
        yield act(_end, f"end_queued({i})", request.slot, request.generation, "cancelled")
        yield put(("state", i), "cancelled", f"end_record({i})")
        yield put(("state", i), "free", f"give_back({i})")
    yield put(("worker", i), me, f"record.worker = {me}")
    yield put(("state", i), "running", f"record {i} is running")
    return i


# ---- Worker ----------------------------------------------------------------------------------------------------------


def _ready(b: Blocked, m: Memory) -> bool:
    """Pool::work_ready()."""
    if m["head"] < len(m["ring"]) or m["heap"]:
        return True
    if "nobody looks at what is blocked" in b.broken:
        return False
    return any(_came(b, m, b.requests[i]) != "not yet" for i in m["blocked"])


def worker(b: Blocked, me: int, finished: int = NOBODY) -> Steps:
    ready = finished != NOBODY or (yield look(lambda m: _ready(b, m), "work_ready()"))
    if not ready:
        yield goto(doze, b, me)
    yield call(enter, b)
    if finished != NOBODY:
        yield put(("state", finished), "free", f"give_back({finished})")
    yield call(drain, b)
    i = yield call(pick, b, me)
    yield call(leave, b)
    if i == NOBODY:
        yield goto(worker, b, me)
    request = b.requests[i]
    yield act(lambda m: _run(m, request), f"runs {request.on}")
    end = "failed" if request.fails else "done"
    yield act(_end, f"end_request({request.slot}, {request.generation})", request.slot, request.generation, end)
    yield act(_finish, f"end_record({i})", i, end)
    yield goto(worker, b, me, i)


def _finish(m: Memory, i: int, end: str) -> None:
    m["state", i] = end


def _run(m: Memory, request: Request) -> None:
    if request.on in m["ran"]:
        raise BrokenError(f"{request.on} runs twice")
    late = [on for on in request.after if _end_of(m, on) != "done"]
    if late:
        raise BrokenError(f"{request.on} runs, and {late[0]} has ended as {_end_of(m, late[0])}")
    m["ran"] += (request.on,)


def doze(b: Blocked, me: int) -> Steps:
    """Worker::sleep_leading()."""
    bell = yield load("bell")
    yield swap("need_wake", 1)
    ready = yield look(lambda m: _ready(b, m), "work_ready()")
    if not ready:
        yield sleep(("bell", bell))
    yield goto(worker, b, me)


def bury(b: Blocked) -> Steps:
    """Sweeper::bury_worker(), then rouse()."""
    yield when(lambda m: bool(m["dead"]), "hears of a death")
    dead = yield act(next_dead, "whose")
    yield call(enter, b)
    for i, request in enumerate(b.requests):
        state, runner = yield look(lambda m, i: (m["state", i], m["worker", i]), f"record {i}", i)
        if runner != dead or state in ("free", "queued"):
            continue
        yield act(_end, f"end_running({i})", request.slot, request.generation, "failed")
        yield put(("state", i), "free", f"give_back({i})")
    yield call(leave, b)
    yield add("bell", 1)
    yield wake("bell", ALL)
    yield goto(bury, b)


# ---- the client, and the whole ---------------------------------------------------------------------------------------


def ring_doorbell() -> Steps:
    raised = yield swap("need_wake", 0, lambda old: old)
    if raised:
        yield add("bell", 1)
        yield wake("bell", ALL)


def client(b: Blocked, sent: int = 0) -> Steps:
    if sent == len(b.requests):
        return
    request = b.requests[sent]
    if request.generation > 1:
        # A line is used again once its request has ended, and those that wait for it as well (ClientSlot::awaited).
        yield when(lambda m: _may_use(b, m, request), f"slot {request.slot} is free again")
    yield act(lambda m: m.__setitem__("ring", (*m["ring"], request)), f"publishes {request.on}")
    yield call(ring_doorbell)
    yield goto(client, b, sent + 1)


def _may_use(b: Blocked, m: Memory, request: Request) -> bool:
    before = (request.slot, request.generation - 1)
    waiting = [other.on for other in b.requests if before in other.after]
    if "a line that is waited for is used again" in b.broken:
        waiting = []
    return all(_end_of(m, on) is not None for on in (before, *waiting))


def signal(b: Blocked, event: int) -> Steps:
    """ClientSession::signal(), at any moment."""
    end = "cancelled" if event in b.given_up else "done"
    yield act(_end, f"signal({event}, {end})", event, 1, end)
    if "signal() does not ring" not in b.broken:
        yield call(ring_doorbell)


def cancel(b: Blocked, i: int) -> Steps:
    """ClientSession::cancel(), at any moment after it was submitted."""
    request = b.requests[i]
    yield when(lambda m: request in m["ring"], "has submitted it")
    yield act(_cancel, f"cancel({i})", request)
    if request.after and "cancel() does not ring" not in b.broken:
        yield call(ring_doorbell)


def _cancel(m: Memory, request: Request) -> None:
    if request.on not in m["ran"]:
        _end(m, request.slot, request.generation, "cancelled")


def model(b: Blocked, **options: Any) -> Model:
    processes = [Process(f"worker{i}", worker, (b, i), daemon=True, mortal=i < b.deaths) for i in range(b.workers)]
    processes.append(Process("client", client, (b,)))
    processes += [Process(f"signals{event}", signal, (b, event)) for event in b.events if event not in b.silent]
    processes += [Process(f"cancels{i}", cancel, (b, i)) for i in b.cancelled]
    if b.deaths:
        processes.append(Process("burier", bury, (b,), daemon=True))

    def on_death(memory: Memory, at: int) -> None:
        memory["dead"] += (at,)

    def final(m: Memory) -> str | None:
        open_ones = [request.on for request in b.requests if _end_of(m, request.on) is None]
        if open_ones:
            return f"{open_ones} never end"
        busy = [i for i in range(len(b.requests)) if m["state", i] != "free" and m["state", i] not in ENDS]
        return f"records {busy} are never free again" if busy else None

    return Model(processes, b.memory(), order="sc", deaths=b.deaths, on_death=on_death, final=final, **options)
