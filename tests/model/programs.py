"""BPF programs that share a session (src/teal/bpf/include/teal_bpf.h), and the worker that empties their ring,
statement by statement: take, send, poll, release, leave; several producers, one consumer.

Theory of operation: programs on several CPUs, and programs that interrupt each other, are processes here; each makes
its requests one after the other. BPF's atomic operations with a result are locked operations. `touching` and `holder`
are ghosts: who uses a slot's memory, and which program has it. A request is its slot and its generation; inputs and
outputs say whose they are. The worker sleeps on one bell, which stands for the ring buffer, the bell's thread and the
doorbell it rings. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .explore import Model, Process
from .operation import (
    BrokenError,
    Memory,
    Steps,
    act,
    add,
    call,
    cas,
    choose,
    fail,
    goto,
    load,
    look,
    sleep,
    store,
    swap,
    wake,
    when,
)

NOTHING = (-1, 0)  # no entry, no inputs


@dataclass(frozen=True)
class Programs:
    programs: int = 2
    requests: int = 2  # of each program
    slots: int = 2
    places: int = 4  # of the ring
    leaves: bool = False  # a program may do without its verdict
    late: bool = False  # the worker may let go of a slot only after it has answered
    broken: frozenset[str] = frozenset()

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"head": 0, "need_wake": 0, "bell": 0}
        for slot in range(self.slots):
            memory["word", slot] = (0, "free")
            memory["line", slot] = (0, "none", True)  # generation, state, released with it
            memory["released", slot] = 0
            memory["input", slot] = memory["output", slot] = NOTHING
            memory["holder", slot] = -1
        for place in range(self.places):
            memory["sequence", place] = 0
            memory["entry", place] = NOTHING
        return memory | {"touching": frozenset(), "ran": frozenset(), "sent": frozenset()}


def _ended(line: tuple[int, str, bool], generation: int) -> bool:
    return line[0] == generation and line[1] in ("done", "cancelled")


def _quiescent(m: Memory, slot: int, generation: int) -> bool:
    """teal_bpf_quiescent()."""
    line = m["line", slot]
    return (_ended(line, generation) and line[2]) or bool(m["released", slot] == generation)


def _is_free(m: Memory, slot: int) -> bool:
    generation, state = m["word", slot]
    return bool(state == "free" or (state == "left" and _quiescent(m, slot, generation)))


# ---- programs --------------------------------------------------------------------------------------------------------


def take(p: Programs, me: int) -> Steps:
    """teal_bpf_take(). A slot and its generation, or None: every slot is out. Where it begins does not matter."""
    for slot in range(p.slots):
        generation, state = yield load(("word", slot))
        if state == "left" and "what was left is free at once" not in p.broken:
            let_go = yield look(_quiescent, "teal_bpf_quiescent()", slot, generation)
            if not let_go:
                continue
        elif state not in ("free", "left"):
            continue
        if "a slot is taken with a plain store" in p.broken:
            yield store(("word", slot), (generation, "taken"))
            yield act(_hold, f"program {me} has slot {slot}", slot, me)
            return slot, generation
        # __sync_val_compare_and_swap(&slot->word, word, ...)
        ours = partial(_hold_if, slot, me)
        won = yield cas(("word", slot), (generation, state), (generation, "taken"), lambda result: result[0], ours)
        if won:
            return slot, generation
    return None


def _hold_if(slot: int, me: int, m: Memory, result: Any) -> None:
    if result[0] if isinstance(result, tuple) else result:
        _hold(m, slot, me)


def _hold(m: Memory, slot: int, me: int) -> None:
    if m["holder", slot] != -1:
        raise BrokenError(f"slot {slot} is taken by program {me}, and program {m['holder', slot]} has it")
    if any(touched == slot for touched, _ in m["touching"]):
        raise BrokenError(f"slot {slot} is taken while a worker uses it: {sorted(m['touching'])}")
    m["holder", slot] = me


def send(p: Programs, slot: int, generation: int) -> Steps:
    """teal_bpf_send()."""
    yield store(("word", slot), (generation, "sent"))  # TEAL_BPF_READ(slot->word) = generation << 8 | SENT;
    if "the place is not fetched and added" in p.broken:
        position = yield load("head")
        yield store("head", position + 1)
        yield act(_sent, "is sent", slot, generation)
    else:  # __sync_fetch_and_add(&producer->head, 1)
        position = yield act(_place, "fetches and adds head", slot, generation)
    place = position % p.places
    rings = 0
    if "looks at need_wake before it publishes" in p.broken:
        rings = yield load("need_wake")
    if "published before it is filled" in p.broken:
        yield swap(("sequence", place), position + 1)
    yield store(("entry", place), (slot, generation))  # entry->slot = call->index; ... entry->submitted_high = 0;
    if "published with a plain store" in p.broken:
        yield store(("sequence", place), position + 1)
    elif "published before it is filled" not in p.broken:
        yield swap(("sequence", place), position + 1)  # __sync_lock_test_and_set(&entry->sequence, position + 1);
    if "looks at need_wake before it publishes" not in p.broken:
        rings = yield load("need_wake")  # TEAL_BPF_READ(*need_wake) == 0
    if rings:
        raised = yield swap("need_wake", 0, lambda old: old)
        if raised:
            yield add("bell", 1)
            yield wake("bell", 1)


def _sent(m: Memory, slot: int, generation: int) -> None:
    m["sent"] |= {(slot, generation)}


def _place(m: Memory, slot: int, generation: int) -> int:
    _sent(m, slot, generation)
    head: int = m["head"]
    m["head"] = head + 1
    return head


def program(p: Programs, me: int, left: int) -> Steps:
    if left == 0:
        return
    taken = yield call(take, p, me)
    if taken is None:
        yield when(lambda m: any(_is_free(m, slot) for slot in range(p.slots)), "a slot is free")
        yield goto(program, p, me, left)
    slot, before = taken
    generation = before if "the generation stays" in p.broken and before > 0 else before + 1
    # Features, in place: for which request they are.
    yield store(("input", slot), (slot, me, left))
    yield call(send, p, slot, generation)
    stays = True
    if p.leaves:
        stays = yield choose(True, False)
    yield goto(read if stays else leave, p, me, left, slot, generation)


def read(p: Programs, me: int, left: int, slot: int, generation: int) -> Steps:
    yield when(lambda m: _ended(m["line", slot], generation), "teal_bpf_poll(): ended")
    made = yield load(("output", slot))
    if made != (slot, me, left):
        yield fail(f"program {me} reads {made} for its request {left} in slot {slot}")
    # teal_bpf_release()
    let_go = yield look(_quiescent, "teal_bpf_quiescent()", slot, generation)
    following = "free" if let_go or "released before the worker let go" in p.broken else "left"
    yield cas(("word", slot), (generation, "sent"), (generation, following), lambda result: None, partial(_drop, slot))
    yield goto(program, p, me, left - 1)


def leave(p: Programs, me: int, left: int, slot: int, generation: int) -> Steps:
    """teal_bpf_leave()."""
    line = yield load(("line", slot))
    if line[0] != generation:  # neither claimed nor ended
        yield cas(("line", slot), line, (generation, "cancelled", False), lambda result: None)
    yield cas(("word", slot), (generation, "sent"), (generation, "left"), lambda result: None, partial(_drop, slot))
    yield goto(program, p, me, left - 1)


def _drop(slot: int, m: Memory, result: Any) -> None:
    m["holder", slot] = -1


# ---- the worker ------------------------------------------------------------------------------------------------------


def worker(p: Programs, position: int) -> Steps:
    """RingConsumer::pop(), then the run and end_request(); or Worker::sleep_leading()."""
    place = position % p.places
    sequence = yield load(("sequence", place))  # slot.sequence.load(acquire) == position_ + 1
    if sequence != position + 1:
        yield goto(doze, p, position)
    # memcpy(&entry, message, ...); then the run, in place
    slot, generation = yield act(_run, f"copies and runs entry {position}", place)
    late = False
    if p.late:
        late = yield choose(False, True)
    yield act(_end, f"end_request({slot}, {generation})", slot, generation, late)
    if late:
        yield act(_let_go, f"release_slot({slot}, {generation})", slot, generation)
    yield goto(worker, p, position + 1)


def _run(m: Memory, place: int) -> tuple[int, int]:
    slot, generation = m["entry", place]
    if (slot, generation) not in m["sent"]:
        raise BrokenError(f"({slot}, {generation}) is run, and was not sent")
    if (slot, generation) in m["ran"]:
        raise BrokenError(f"({slot}, {generation}) is run twice")
    m["ran"] |= {(slot, generation)}
    m["touching"] |= {(slot, generation)}
    m["output", slot] = m["input", slot]
    return slot, generation


def _end(m: Memory, slot: int, generation: int, late: bool) -> None:
    line = m["line", slot]
    if not _ended(line, generation):
        m["line", slot] = (generation, "done", not late)
    if not late:
        _let_go(m, slot, generation)


def _let_go(m: Memory, slot: int, generation: int) -> None:
    m["touching"] -= {(slot, generation)}
    m["released", slot] = generation


def doze(p: Programs, position: int) -> Steps:
    bell = yield load("bell")  # the bell first
    yield swap("need_wake", 1)  # header->need_wake.exchange(1);
    sequence = yield load(("sequence", position % p.places))
    if sequence != position + 1:
        yield sleep(("bell", bell))
    yield goto(worker, p, position)


# ---- the whole -------------------------------------------------------------------------------------------------------


def model(p: Programs, order: str = "tso", **options: Any) -> Model:
    processes = [Process(f"program{i}", program, (p, i, p.requests)) for i in range(p.programs)]
    processes.append(Process("worker", worker, (p, 0), daemon=True))

    def final(m: Memory) -> str | None:
        if len(m["sent"]) != p.programs * p.requests:
            return f"{m['sent']} were sent"
        if sorted(m["ran"]) != sorted(m["sent"]):
            return f"{m['ran']} were run, of {m['sent']}"
        held = [slot for slot in range(p.slots) if not _is_free(m, slot)]
        return f"slots {held} are never free again" if held else None

    return Model(processes, p.memory(), order=order, final=final, **options)
