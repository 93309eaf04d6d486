"""core/host/pool.cpp and repair.cpp under the role, statement by statement, as a model: drain, admit, pick, give_back,
repair and their callers.

Theory of operation: whoever holds the role may die between any two statements, and the next one repairs. Everything
the role protects is sequentially consistent here, because the role's mutex is all that hands it over. What a
request line does (compare-and-swap loops, generations) is one step here; line.py takes it apart.

`held` says what must be true whenever nobody holds the role; `repaired` after every repair(). `broken`: as in
pool.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .explore import Model, Process
from .operation import BrokenError, Memory, Steps, act, call, goto, lock, look, next_dead, unlock, when
from .records import (
    NOBODY,
    NOTHING,
    TERMINAL,
    Dispatch,
    Entry,
    bump,
    check,
    end_record,
    give_back,
    heap_pop,
    heap_push,
    prune,
    put,
    rebuild,
    set_state,
)

# ---- lines -----------------------------------------------------------------------------------------------------------


def _past(d: Dispatch, word: tuple[int, str, bool], generation: int) -> bool:
    """is_past()."""
    ended = word[0] == generation and word[1] in TERMINAL
    return ended or (word[0] > generation and "a later generation is not told from an earlier one" not in d.broken)


def _end(d: Dispatch, m: Memory, entry: Entry, state: str) -> None:
    """end_request() with word_released."""
    if entry == NOTHING:
        raise BrokenError("a record ends that holds no request")
    if _past(d, m["word", entry.slot], entry.generation):
        _release(m, entry)
        return
    if m["word", entry.slot][0] > entry.generation:
        raise BrokenError(f"{entry} ends, and its slot is at {m['word', entry.slot]} already")
    _deliver(m, entry)
    m["word", entry.slot] = (entry.generation, state, True)


def _release(m: Memory, entry: Entry) -> None:
    m["released", entry.slot] = max(m["released", entry.slot], entry.generation)


def _deliver(m: Memory, entry: Entry) -> None:
    key = (entry.slot, entry.generation)
    if key in m["ends"]:
        raise BrokenError(f"{entry} ends twice")
    m["ends"] += (key,)


def _cancel(m: Memory, entry: Entry) -> None:
    """ClientSession::cancel()."""
    if m["word", entry.slot][0] < entry.generation:
        _deliver(m, entry)
        m["word", entry.slot] = (entry.generation, "cancelled", False)
        m["refused"] |= {(entry.slot, entry.generation)}


def _quiescent(m: Memory, slot: int, generation: int) -> bool:
    ended, state, released = m["word", slot]
    return bool((ended == generation and state in TERMINAL and released) or m["released", slot] == generation)


# ---- Pool ------------------------------------------------------------------------------------------------------------


def enter(d: Dispatch) -> Steps:
    taken = yield lock("role")
    if taken == "after_death" and "nothing is repaired" not in d.broken:
        yield call(rebuild, d)  # repair();


def leave(d: Dispatch) -> Steps:
    yield look(lambda m: check(d, m), "the state is whole")
    yield unlock("role")


def drain(d: Dispatch) -> Steps:
    while True:
        # state == open; while (line.in_flight < line.limit) { message = ring.peek(); if (message == nullptr) break;
        entry, head = yield look(lambda m: _peek(d, m), "ring.peek()")
        if entry is None:
            return
        if "the head moves before the record exists" in d.broken:
            yield put("head", head + 1, f"line.head = {head + 1}")
        admitted = yield call(admit, d, entry, head)
        if not admitted:  # if (!admit(line, *map, entry)) { ... return moved; }
            return
        yield put("head", head + 1, f"line.head = {head + 1}")  # poke(line.head, ring.position() + 1);
        yield put("tail", head + 1, f"tail = {head + 1}")  # ring.retire();


def _peek(d: Dispatch, m: Memory) -> tuple[Entry | None, int]:
    head = m["head"]
    ready = m["session"] == "open" and m["in_flight"] < d.limit and head < len(m["ring"])
    return (m["ring"][head] if ready else None), head


def refuse_ring(d: Dispatch) -> Steps:
    while True:
        entry, head = yield look(lambda m: (dict(enumerate(m["ring"])).get(m["head"]), m["head"]), "ring.peek()")
        if entry is None:
            return
        yield act(lambda m, e: _end(d, m, e, "cancelled"), f"end_request({entry.slot}, {entry.generation})", entry)
        yield put("head", head + 1, f"line.head = {head + 1}")
        yield put("tail", head + 1, f"tail = {head + 1}")


def admit(d: Dispatch, entry: Entry, head: int) -> Steps:
    refused = yield look(lambda m: entry.refused and not m["loaded"], "resolve()")
    if refused:
        # reason != none
        yield act(lambda m: _end(d, m, entry, "failed"), f"end_request({entry.slot}, {entry.generation})")
        return True
    # index = take_free(); if (index == nobody) return false;
    index = yield look(lambda m: m["free_head"] - 1, "take_free()")
    if index < 0:
        return False
    following = yield look(lambda m: m["next", index], "records[record].next_free")
    yield put("free_head", following, f"free_head = {following}")
    if "queued before its fields" in d.broken:
        yield act(lambda m: set_state(m, index, "queued"), f"record {index} is queued")
    sequence = yield look(lambda m: m["next_sequence"], "header.next_sequence++")
    yield put("next_sequence", sequence + 1, "header.next_sequence++")
    yield put(("worker", index), NOBODY, "record.worker = nobody")
    # record.session ... sequence
    yield put(("request", index), (entry, head, 0, sequence), f"record {index} = entry {head}")
    if "queued before its fields" not in d.broken:
        # store_state(record, State::queued);
        yield act(lambda m: set_state(m, index, "queued"), f"record {index} is queued")
    yield bump("in_flight", 1)  # ++line.in_flight; ++versions[...].in_flight;
    yield bump("active", 1)  # header.active.store(... + 1);
    yield call(heap_push, d, index)
    return True


def pick(d: Dispatch, worker: int) -> Steps:
    """Returns a record or NOBODY."""
    while True:
        record = yield call(heap_pop, d)
        if record == NOBODY:
            return NOBODY
        state, entry, gone = yield look(lambda m, r: _picked(d, m, r), f"record {record}", record)
        if state != "queued":  # if (state_of_record(record) != State::queued) { give_back({&index, 1}); continue; }
            yield call(give_back, d, record)
            continue
        if not gone or "pick() does not look at the word" in d.broken:
            break
        ends = act(lambda m, e: _end(d, m, e, "cancelled"), f"end_queued({record})", entry)
        if "pick() ends the record first" not in d.broken:
            yield ends  # end_queued(index, map, State::cancelled, Reason::client_cancelled);
        yield act(end_record, f"end_record({record})", record, "cancelled")
        if "pick() ends the record first" in d.broken:
            yield ends
        yield call(give_back, d, record)
    yield put(("worker", record), worker, f"record.worker = {worker}")
    # compare_exchange_strong(queued, running)
    yield act(lambda m: set_state(m, record, "running"), f"record {record} is running")
    yield act(lambda m: _attempt(m, record), "++record.attempts")
    return record


def _picked(d: Dispatch, m: Memory, record: int) -> tuple[str, Entry, bool]:
    entry = m["request", record][0]
    return m["state", record][1], entry, entry != NOTHING and _past(d, m["word", entry.slot], entry.generation)


def _attempt(m: Memory, record: int) -> None:
    entry, position, attempts, sequence = m["request", record]
    m["request", record] = (entry, position, attempts + 1, sequence)


# ---- Worker ----------------------------------------------------------------------------------------------------------


def worker(d: Dispatch, me: int, finished: int = NOBODY) -> Steps:
    """Worker::take(), then execute() and finish()."""
    yield when(lambda m: finished != NOBODY or bool(m["heap_size"]) or _peek(d, m)[0] is not None, "has work")
    yield call(enter, d)
    if finished != NOBODY:
        yield call(give_back, d, finished)  # pool_->give_back(finished_);
    yield call(drain, d)
    record = yield call(pick, d, me)
    yield call(leave, d)
    if record == NOBODY:
        yield goto(worker, d, me)
    entry = yield act(lambda m: _run(d, m, record, me), f"runs record {record}")  # claims, and runs, see line.py
    told = act(lambda m: _end(d, m, entry, "done"), f"end_request({entry.slot}, {entry.generation})")
    if "finish() ends the record first" not in d.broken:
        yield told  # told = session != nullptr && end_request(...);
    # pool_->end_record(index, ending.state)
    yield act(lambda m: end_record(m, record, "done"), f"end_record({record})")
    if "finish() ends the record first" in d.broken:
        yield told
    yield goto(worker, d, me, record)  # finished_.push_back(index);


def _run(d: Dispatch, m: Memory, record: int, me: int) -> Entry:
    entry: Entry = m["request", record][0]
    key = (entry.slot, entry.generation)
    if entry == NOTHING or m["state", record][1] != "running" or m["worker", record] != me:
        raise BrokenError(
            f"worker {me} runs record {record}, which is {m['state', record][1]} with {m['worker', record]}"
        )
    if key in m["refused"]:
        return entry  # claim_request() says so
    if key in m["runs"] and not d.idempotent:
        raise BrokenError(f"{entry} runs twice")
    if _past(d, m["word", entry.slot], entry.generation):
        raise BrokenError(f"{entry} runs, and its slot is at {m['word', entry.slot]}")
    m["runs"] += (key,)
    return entry


# ---- Sweeper ---------------------------------------------------------------------------------------------------------


def bury(d: Dispatch) -> Steps:
    """Sweeper::bury_worker()."""
    yield when(lambda m: bool(m["dead"]), "hears of a death")
    dead = yield act(next_dead, "whose")
    yield call(enter, d)
    for i in range(d.records):
        state, runner, (entry, _, attempts, _) = yield look(
            lambda m, i: (m["state", i][1], m["worker", i], m["request", i]), f"record {i}", i
        )
        # if (record.worker != worker || state == free || state == queued)
        if runner != dead or state in ("free", "queued"):
            continue
        wanted = yield look(
            lambda m, e: not _past(d, m["word", e.slot], e.generation), "!is_past(line.word, ...)", entry
        )
        if state == "running" and d.idempotent and wanted and attempts < 3:
            yield put(("worker", i), NOBODY, "record.worker = nobody")  # requeue(i)
            yield act(set_state, f"record {i} is queued again", i, "queued", 1)
            yield call(heap_push, d, i)
            continue
        ours = yield act(end_record, f"end_record({i})", i, "failed")
        if ours:
            yield act(lambda m, e: _end(d, m, e, "failed"), f"end_running({i})", entry)
        else:
            yield act(_release, f"release_slot({entry.slot}, {entry.generation})", entry)
        yield call(give_back, d, i)
    yield call(leave, d)
    yield goto(bury, d)


def end_all_queued(d: Dispatch, to: str) -> Steps:
    for i in range(d.records):
        entry = yield look(lambda m, i: m["request", i][0] if m["state", i][1] == "queued" else None, f"record {i}", i)
        if entry is not None:
            yield act(end_record, f"end_record({i})", i, to)
            yield act(lambda m, e: _end(d, m, e, to), f"end_queued({i})", entry)
    yield call(prune, d)  # pool_->prune();


def expire(d: Dispatch) -> Steps:
    """Sweeper::expire() of what is queued, at any moment; line.py has what is running."""
    yield when(lambda m: any(m["state", i][1] == "queued" for i in range(d.records)), "a deadline passes")
    yield call(enter, d)
    yield call(end_all_queued, d, "expired")
    yield call(leave, d)


def close(d: Dispatch) -> Steps:
    """Sweeper::close_session(), at any moment."""
    yield call(enter, d)
    yield put("session", "closing", "line.state = closing")
    yield call(end_all_queued, d, "cancelled")
    if "what is in the ring is forgotten" not in d.broken:
        yield call(refuse_ring, d)
    yield call(leave, d)
    yield when(lambda m: bool(m["in_flight"] == 0), "session_in_flight() == 0")


# ---- the client, and the whole ---------------------------------------------------------------------------------------


def client(d: Dispatch, sent: int) -> Steps:
    """Publishes what is not yet in the ring, each entry when the one before it in its slot is quiescent."""
    if sent == len(d.entries):
        return
    entry = d.entries[sent]
    ready: Callable[[Memory], bool] = lambda m: _quiescent(m, entry.slot, entry.generation - 1)  # noqa: E731
    yield when(ready, f"waits for slot {entry.slot}")
    yield act(lambda m: _push(d, m, entry), f"publishes {entry.slot}, {entry.generation}")
    yield goto(client, d, sent + 1)


def _push(d: Dispatch, m: Memory, entry: Entry) -> None:
    if len(m["ring"]) - m["tail"] >= d.capacity:
        raise BrokenError("the ring is full for a client that reuses its slots when they are quiescent")
    m["ring"] += (entry,)


def cancel(d: Dispatch, which: int) -> Steps:
    entry = d.entries[which]
    yield when(lambda m: entry in m["ring"], "holds the future")
    yield act(lambda m: _cancel(m, entry), f"cancels {entry.slot}, {entry.generation}")


def load_model(d: Dispatch) -> Steps:
    yield lock("role")  # Sweeper::publish_version()
    yield put("loaded", True, "version.state = ready")
    yield unlock("role")


def model(d: Dispatch, **options: Any) -> Model:
    # Workers are alike: which of them die does not matter, only how many.
    processes = [Process(f"worker{i}", worker, (d, i), daemon=True, mortal=i < d.deaths) for i in range(d.workers)]
    processes.append(Process("host", bury, (d,), daemon=True))
    if d.expires:
        processes.append(Process("sweeper", expire, (d,), daemon=True))
    if d.closes:
        processes.append(Process("closer", close, (d,)))
    if d.loads:
        processes.append(Process("loader", load_model, (d,), daemon=True))
    if len(d.entries) > d.published:
        processes.append(Process("client", client, (d, d.published)))
    processes += [Process(f"cancel{i}", cancel, (d, i)) for i in d.cancelled]

    def on_death(m: Memory, at: int) -> None:
        m["dead"] += (at,)

    def final(m: Memory) -> str | None:
        missing = [entry for entry in d.entries if (entry.slot, entry.generation) not in m["ends"]]
        if missing:
            return f"never ended: {missing}"
        if any(m["state", i][1] != "free" for i in range(d.records)) or m["in_flight"] or m["active"]:
            return "all requests have ended, and some record is not free"
        limbo = {entry.slot for entry in d.entries if not _quiescent(m, entry.slot, m["word", entry.slot][0])}
        return f"slots that are never quiescent: {sorted(limbo)}" if limbo else None

    return Model(processes, d.memory(), "sc", d.deaths, on_death, final=final, **options)
