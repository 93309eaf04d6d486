"""One completion line and the records of its requests: client, two workers and the host on core/host/session.cpp,
client.cpp, worker.cpp and sweeper.cpp, as a model.

Theory of operation: one slot is used for generation after generation. A completion word is (generation, state,
released flag). The generations that a client could still be waiting for are few, so they are plain numbers that do
not wrap. What happens under the role is one step here (test_dispatch.py takes it apart), except what touches the
line, which others touch at the same time.

Three things are kept beside the C++'s own memory, to state the properties: `current`, the generation that the
client wrote inputs for last; `touching`, which workers use the slot's memory, and for which generation; `ends`,
`runs` and `refused`: what was delivered, run, and cancelled before it was claimed. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .explore import Model, Process
from .operation import (
    BrokenError,
    Memory,
    Steps,
    act,
    call,
    cas,
    choose,
    goto,
    load,
    lock,
    look,
    next_dead,
    store,
    unlock,
    when,
)

TERMINAL = ("done", "failed", "cancelled", "expired")
Word = tuple[int, str, bool]


@dataclass(frozen=True)
class Line:
    generations: int = 2
    workers: int = 2
    records: int = 2
    pure: bool = False
    idempotent: bool = False
    client: tuple[str, ...] = ("wait", "cancel", "expire", "drop")  # what it may do with a request
    expiries: int = 1  # how often the host finds that a deadline has passed
    deaths: int = 1
    fields: bool = False  # whether what stands beside the word is modelled
    broken: frozenset[str] = frozenset()

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"word": (0, "free", True), "released": 0, "fields": 0, "ring": (), "role": 0}
        memory |= {"current": 0, "touching": frozenset(), "ends": (), "runs": (), "refused": frozenset(), "dead": ()}
        for i in range(self.records):
            memory["state", i] = (0, "free")  # (generation of the record, state)
            memory["entry", i] = (0, -1, 0)  # (generation of the request, worker, attempts)
        return memory


def has_ended(word: Word, generation: int) -> bool:
    return word[0] == generation and word[1] in TERMINAL


def is_past(line: Line, word: Word, generation: int) -> bool:
    if "a later generation is not told from an earlier one" in line.broken:
        return has_ended(word, generation)
    return word[0] > generation or has_ended(word, generation)


# ---- session.cpp -----------------------------------------------------------------------------------------------------


def deliver(memory: Memory, generation: int) -> None:
    """Ghost of every compare-and-swap that ends a generation."""
    if memory["current"] != generation:
        raise BrokenError(f"the end of generation {generation} is delivered to generation {memory['current']}")
    if generation in memory["ends"]:
        raise BrokenError(f"generation {generation} ends twice")
    memory["ends"] += (generation,)


def claim_request(line: Line, generation: int) -> Steps:
    word = yield load("word")  # seen = line.word.load(acquire);
    while not is_past(line, word, generation):
        # compare_exchange_strong(seen, (g, running))
        won, word = yield cas("word", word, (generation, "running", False))
        if won:
            return True
    return False


def release_slot(line: Line, generation: int) -> Steps:
    if "release_slot() goes backwards" in line.broken:
        yield store("released", generation, release=True)
        return
    won = False
    seen = yield load("released")  # seen = line.released.load(acquire);
    while not won:
        if "release_slot() does not look at the word" not in line.broken:
            # is_later(generation_of(line.word.load(acquire)), ...)
            later = yield load("word", lambda word: word[0] > generation)
            if later:
                return
        # line.released.compare_exchange_strong(seen, generation, release)
        won, seen = yield cas("released", seen, generation)
        if "release_slot() tries once" in line.broken:
            return


def end_request(line: Line, generation: int, state: str, released: bool) -> Steps:
    """Returns whether it won."""
    word = yield load("word")  # seen = line.word.load(acquire);
    while not is_past(line, word, generation):
        if line.fields:
            yield store("fields", generation)  # line.version.store(...) ... line.copied_out.store(...)
        won, word = yield cas(  # line.word.compare_exchange_strong(seen, word, seq_cst, acquire)
            "word",
            word,
            (generation, state, released),
            ghost=lambda m, seen: deliver(m, generation) if seen[0] else None,
        )
        if won:
            return True
    if released and "a lost race releases nothing" not in line.broken:
        # if (!won && (ending.flags & word_released) != 0) release_slot(...);
        yield call(release_slot, line, generation)
    return False


# ---- ClientSession ---------------------------------------------------------------------------------------------------


def quiescent(line: Line, generation: int) -> Steps:
    word = yield load("word")  # word = slot.line->word.load(acquire);
    if has_ended(word, generation) and word[2]:  # if (has_ended(word, ...) && (flags_of(word) & word_released) != 0)
        return True
    if "ended is enough" in line.broken:
        return has_ended(word, generation)
    # slot.line->released.load(acquire) == slot.generation
    released = yield load("released", lambda seen: seen == generation)
    return released


def cancel(line: Line, generation: int, to: str) -> Steps:
    word = yield load("word")  # seen = slot.line->word.load(acquire);
    while not has_ended(word, generation):
        running = word[0] == generation  # running = generation_of(seen) == slot.generation
        if running and to == "cancelled" and "cancel() passes over a claim" not in line.broken:
            return  # if (running && to == State::cancelled) return false;
        won, word = yield cas(
            "word", word, (generation, to, False), ghost=lambda m, seen: _ended_by_client(line, m, seen, generation, to)
        )
        if won:
            return


def _ended_by_client(line: Line, memory: Memory, seen: tuple[bool, Word], generation: int, to: str) -> None:
    won, word = seen
    if not won:
        return
    deliver(memory, generation)
    if word[0] == generation and to == "cancelled" and not line.pure:
        raise BrokenError(f"generation {generation} is said to be cancelled, and was claimed")
    if word[0] != generation:
        memory["refused"] |= {generation}


def client(line: Line, generation: int) -> Steps:
    """Loan, write, submit, and then wait, cancel, expire, or drop the future; the slot again when it is quiescent."""
    yield act(lambda m: _write_inputs(m, generation), f"writes the inputs of generation {generation}")
    yield act(lambda m: m.__setitem__("ring", (*m["ring"], generation)), "producer_.push(&entry)")  # see test_ring.py
    what = yield choose(*line.client)
    if what in ("cancel", "expire"):
        yield call(cancel, line, generation, "cancelled" if what == "cancel" else "expired")
    if what == "wait":
        yield when(lambda m: has_ended(m["word"], generation), "waits")  # see completion.py
        yield look(lambda m: _read_outputs(line, m, generation), "reads the outputs")
    yield goto(rest, line, generation)


def rest(line: Line, generation: int) -> Steps:
    """SlotHome: the slot is in limbo until it is quiescent, and then loaned again."""
    ready = yield call(quiescent, line, generation)
    if not ready:
        yield when(lambda m: _may_be_quiescent(m, generation), "the slot rests in limbo")
        yield goto(rest, line, generation)
    if generation < line.generations:
        yield goto(client, line, generation + 1)


def _may_be_quiescent(memory: Memory, generation: int) -> bool:
    word: Word = memory["word"]
    return (has_ended(word, generation) and word[2]) or bool(memory["released"] == generation)


def _write_inputs(memory: Memory, generation: int) -> None:
    if memory["touching"]:
        raise BrokenError(
            f"the slot is loaned for generation {generation} while a worker uses it: {sorted(memory['touching'])}"
        )
    memory["current"] = generation


def _read_outputs(line: Line, memory: Memory, generation: int) -> None:
    if line.fields and memory["word"][1] == "done" and memory["fields"] != generation:
        raise BrokenError(f"generation {generation} was done, and the fields beside its word are of {memory['fields']}")


# ---- Pool, under the role --------------------------------------------------------------------------------------------


def end_record(line: Line, record: int, to: str) -> Steps:
    """A compare-and-swap loop with one outcome: in one step."""
    ours = yield act(lambda m: _end_record(m, record, to), f"end_record({record}, {to})")
    return ours


def _end_record(memory: Memory, record: int, to: str) -> bool:
    generation, state = memory["state", record]
    if state not in ("queued", "running"):
        return False
    memory["state", record] = (generation, to)
    return True


def _give_back(memory: Memory, record: int) -> None:
    if memory["state", record][1] in ("free", "queued", "running"):
        raise BrokenError(f"record {record} is given back while {memory['state', record][1]}")
    memory["state", record] = (memory["state", record][0] + 1, "free")
    memory["entry", record] = (0, -1, 0)


def _drain(line: Line, memory: Memory) -> None:
    for i in range(line.records):
        if memory["ring"] and memory["state", i][1] == "free":
            memory["state", i] = (memory["state", i][0], "queued")
            memory["entry", i] = (memory["ring"][0], -1, 0)
            memory["ring"] = memory["ring"][1:]


def _first_queued(line: Line, memory: Memory) -> int | None:
    queued = [(memory["entry", i][0], i) for i in range(line.records) if memory["state", i][1] == "queued"]
    return min(queued)[1] if queued else None


def _take(line: Line, memory: Memory, worker: int, finished: int | None) -> tuple[int, int, bool] | None:
    """give_back(), drain(), pick(), whose look at the word is relaxed: (record, generation, may run), or None."""
    if finished is not None:
        _give_back(memory, finished)
    _drain(line, memory)
    record = _first_queued(line, memory)  # index = heap_pop();
    if record is None:
        return None
    generation, _, attempts = memory["entry", record]
    # has_ended(map->lines()[record.entry.slot].word.load(relaxed), record.entry.generation)
    if is_past(line, memory["word"], generation) and "pick() does not look at the word" not in line.broken:
        return record, generation, False
    memory["entry", record] = (generation, worker, attempts + 1)  # record.worker = worker; ... ++record.attempts;
    memory["state", record] = (memory["state", record][0], "running")
    return record, generation, True


def _repair(line: Line, memory: Memory) -> None:
    """Pool::repair(): what ended in the run queue is forgotten."""
    for i in range(line.records):
        if memory["state", i][1] in TERMINAL and memory["entry", i][1] == -1:
            _give_back(memory, i)


def enter(line: Line) -> Steps:
    taken = yield lock("role")
    if taken == "after_death":
        yield act(lambda m: _repair(line, m), "repair()")


# ---- Worker ----------------------------------------------------------------------------------------------------------


def worker(line: Line, me: int, finished: int | None = None) -> Steps:
    """Worker::take()."""
    yield when(lambda m: finished is not None or bool(m["ring"]) or _first_queued(line, m) is not None, "wakes up")
    yield call(enter, line)
    taken = yield act(lambda m: _take(line, m, me, finished), "gives back, drains, picks")
    if taken is not None and not taken[2]:
        record, generation, _ = taken
        if "pick() ends the record first" not in line.broken:
            # end_queued(index, map, State::cancelled, ...);
            yield call(end_request, line, generation, "cancelled", True)
        yield call(end_record, line, record, "cancelled")
        if "pick() ends the record first" in line.broken:
            yield call(end_request, line, generation, "cancelled", True)
        yield act(lambda m: _give_back(m, record), f"give_back({record})")
    yield unlock("role")
    if taken is None or not taken[2]:
        yield goto(worker, line, me)
    yield goto(execute, line, me, taken[0], taken[1])


def execute(line: Line, me: int, record: int, generation: int) -> Steps:
    """Worker::execute()."""
    claimed = True
    if not line.pure and "nothing is claimed" not in line.broken:
        # (version.flags & kernel_pure) == 0 && !claim_request(...)
        claimed = yield call(claim_request, line, generation)
    if claimed:
        if "released before the last access" in line.broken:
            yield call(finish, line, record, generation, "done")
        yield act(lambda m: _run(line, m, me, generation), f"starts to run generation {generation}")
        yield act(lambda m: _stop(m, me, generation), f"has run generation {generation}")
    if not claimed or "released before the last access" not in line.broken:
        yield call(finish, line, record, generation, "done" if claimed else "cancelled")
    yield goto(worker, line, me, record)


def finish(line: Line, record: int, generation: int, state: str) -> Steps:
    """Worker::finish()."""
    if "finish() ends the record first" in line.broken:
        ours = yield call(end_record, line, record, state)
        yield call(end_request, line, generation, state, True) if ours else call(release_slot, line, generation)
        return
    told = yield call(end_request, line, generation, state, True)  # told = session != nullptr && end_request(...);
    yield call(end_record, line, record, state if told else "cancelled")  # pool_->end_record(index, ending.state)


def _run(line: Line, memory: Memory, me: int, generation: int) -> None:
    if generation != memory["current"]:
        raise BrokenError(f"generation {generation} runs on a slot that was loaned for {memory['current']}")
    if generation in memory["refused"] and not line.pure:
        raise BrokenError(f"generation {generation} runs, though it was cancelled before it was claimed")
    if any(other == generation for _, other in memory["touching"]) or (
        not line.idempotent and generation in memory["runs"]
    ):
        raise BrokenError(f"generation {generation} runs twice")
    memory["runs"] += (generation,)
    memory["touching"] |= {(me, generation)}


def _stop(memory: Memory, me: int, generation: int) -> None:
    if generation != memory["current"]:
        raise BrokenError(
            f"generation {generation} writes its outputs into a slot that was loaned for {memory['current']}"
        )
    memory["touching"] -= {(me, generation)}


# ---- Sweeper ---------------------------------------------------------------------------------------------------------


def expire(line: Line, left: int) -> Steps:
    """Sweeper::expire(): at any time it may find that a deadline has passed."""
    if left == 0:
        return
    yield when(
        lambda m: any(m["state", i][1] in ("queued", "running") for i in range(line.records)), "a deadline passes"
    )
    yield call(enter, line)
    for i in range(line.records):
        late = yield choose(True, False)  # now <= deadline
        if not late:
            continue
        state, generation = yield act(_expire, f"end_record({i}, expired)", i)
        if not state:  # state == free || is_terminal(state) || !pool_->end_record(i, State::expired)
            continue
        # queued: end_queued(i, ...); running: end_running(i, ..., released = false): its worker lets go in finish()
        released = state == "queued" or "an expired request is released while it runs" in line.broken
        yield call(end_request, line, generation, "expired", released)
        if state == "queued":
            yield act(_give_back, f"give_back({i})", i)  # prune()
    yield unlock("role")
    yield goto(expire, line, left - 1)


def _expire(memory: Memory, record: int) -> tuple[str, int]:
    """state_of_record(), end_record(): (what it was or "", generation of its request)."""
    state = memory["state", record][1]
    return (state if _end_record(memory, record, "expired") else ""), memory["entry", record][0]


def bury(line: Line) -> Steps:
    """Sweeper::bury_worker()."""
    yield when(lambda m: bool(m["dead"]), "hears of a death")
    dead = yield act(next_dead, "whose")
    yield call(enter, line)
    for i in range(line.records):
        (_, state), (generation, runner, attempts) = yield look(
            lambda m, i: (m["state", i], m["entry", i]), f"record {i}", i
        )
        # if (record.worker != worker || state == free || state == queued)
        if runner != dead or state in ("free", "queued"):
            continue
        wanted = line.idempotent
        if wanted:
            # !is_past(line.word.load(acquire))
            wanted = yield load("word", lambda word, g: not is_past(line, word, g), generation)
        if state == "running" and wanted and attempts < 3:
            yield act(_requeue, f"requeue({i})", i)
            continue
        ours = yield call(end_record, line, i, "failed")  # if (pool_->end_record(i, State::failed))
        if ours:
            # end_running(i, State::failed, worker_died, released)
            yield call(end_request, line, generation, "failed", True)
        else:
            yield call(release_slot, line, generation)  # ended already: only the slot is left to release
        yield act(_give_back, f"give_back({i})", i)
    yield unlock("role")
    yield goto(bury, line)


def _requeue(memory: Memory, record: int) -> None:
    generation, _, attempts = memory["entry", record]
    memory["entry", record] = (generation, -1, attempts)
    memory["state", record] = (memory["state", record][0] + 1, "queued")


# ---- the whole -------------------------------------------------------------------------------------------------------


def model(line: Line, **options: Any) -> Model:
    # Workers are alike: which of them die does not matter, only how many.
    processes = [
        Process(f"worker{i}", worker, (line, i), daemon=True, mortal=i < line.deaths) for i in range(line.workers)
    ]
    processes.append(Process("client", client, (line, 1)))
    processes.append(Process("sweeper", expire, (line, line.expiries), daemon=True))
    processes.append(Process("burier", bury, (line,), daemon=True))

    def on_death(memory: Memory, at: int) -> None:
        memory["dead"] += (at,)
        memory["touching"] = frozenset(touch for touch in memory["touching"] if touch[0] != at)

    def final(memory: Memory) -> str | None:
        if sorted(memory["ends"]) != list(range(1, line.generations + 1)):
            return f"ends delivered: {memory['ends']}"
        busy = [i for i in range(line.records) if memory["state", i][1] != "free"]
        return f"records {busy} are never free again" if busy else None

    return Model(processes, line.memory(), deaths=line.deaths, on_death=on_death, final=final, **options)
