"""One worker's desk: the transactions of core/agents (AgentSeat::prepare, publish, withdraw, room;
HostSeat::take_up, settle, void_desk, begin_restating), as a model.

Theory of operation: the agent stages `serials` decisions, one after the other, into `depth` slots, and may take each
of them back. A decision is two fields that say its serial, so that a torn or a mixed one shows. Whoever holds the
role claims what comes next: the worker, one after its death in its place, and the host, which takes the agent's
rights at some moment. `liar`: somebody else writes into a slot at any time; what is carried out must be what was
checked.

Kept beside the C++'s own memory: `begun`, serials that were carried out; `taken_back`; `off`, once the host has said
that the agent's decisions count no more. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .explore import Model, Process
from .operation import BrokenError, Memory, Steps, act, call, cas, choose, goto, load, lock, store, unlock, when

Word = tuple[int, str]
BAD = -1  # a field that no check lets pass


@dataclass(frozen=True)
class Desk:
    serials: int = 3
    depth: int = 2
    withdraws: bool = True
    workers: int = 1  # one after the other at this place: each but the last may die
    agent_dies: bool = False
    put_off: bool = False
    liar: bool = False
    broken: frozenset[str] = frozenset()

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"role": 0, "next": 1, "active": True}
        memory |= {"begun": (), "taken_back": frozenset(), "published": 0, "off": False, "gone": 0}
        for slot in range(self.depth):
            memory["word", slot] = (0, "empty")
            memory["first", slot] = memory["second", slot] = 0
        return memory


# ---- AgentSeat -------------------------------------------------------------------------------------------------------


def agent(d: Desk, serial: int = 1, settled: int = 1) -> Steps:
    if serial > d.serials:
        return
    if "room() believes that there is some" not in d.broken:
        while serial - settled >= d.depth:  # if (end.next - end.settled >= stage_depth) end.settled = settled(worker);
            yield when(lambda m, known: m["next"] > known, "the host has moved on", settled)
            settled = yield load("next")  # next_serial.load(acquire)
    slot = serial % d.depth
    if "ready before the rest is written" in d.broken:
        yield store(("word", slot), (serial, "ready"), release=True)
    for part in ("first", "second"):  # std::memcpy(&slot + sizeof slot.word, &decided, sizeof decided)
        yield store((part, slot), serial)
    if "ready before the rest is written" not in d.broken:
        # slot.word.store(transaction_word(serial, ready), release)
        yield store(("word", slot), (serial, "ready"), release="publish() stores relaxed" not in d.broken)
    yield act(lambda m: m.__setitem__("published", serial), "ghost: published")
    if d.withdraws:
        back = yield choose(False, True)
        if back:
            yield call(withdraw, d, serial)
    yield goto(agent, d, serial + 1, settled)


def withdraw(d: Desk, serial: int) -> Steps:
    name = ("word", serial % d.depth)
    if "withdraw() does not compare" in d.broken:
        ready = yield load(name, lambda word: word == (serial, "ready"))
        if ready:
            yield store(name, (serial, "committed"), release=True)
            yield act(lambda m: _took_back(m, serial), "ghost: taken back")
        return
    # compare_exchange_strong(ready, committed(aborted), acq_rel)
    yield cas(
        name, (serial, "ready"), (serial, "committed"), ghost=lambda m, seen: _took_back(m, serial) if seen[0] else None
    )


def _took_back(m: Memory, serial: int) -> None:
    if serial in m["begun"]:
        raise BrokenError(f"{serial} is taken back, and was carried out")
    m["taken_back"] |= {serial}


def liar(d: Desk) -> Steps:
    """Whoever can write to the desk."""
    slot = yield choose(*range(d.depth))
    yield store(("second", slot), BAD)


# ---- HostSeat --------------------------------------------------------------------------------------------------------


def settle(d: Desk, serial: int) -> Steps:
    if "next_serial moves before its slot is committed" in d.broken:
        yield store("next", serial + 1, release=True)
        yield store(("word", serial % d.depth), (serial, "committed"), release=True)
        return
    yield store(("word", serial % d.depth), (serial, "committed"), release=True)  # word.store(committed, release)
    yield store("next", serial + 1, release=True)  # next_serial.store(serial + 1, release)


def take_up(d: Desk) -> Steps:
    """Returns (serial, first, second) of what is claimed, "settled", or None."""
    serial = yield load("next")  # next_serial.load(relaxed)
    slot = serial % d.depth
    word = yield load(("word", slot))  # slot.word.load(acquire)
    if word[0] != serial or word[1] == "empty":
        return None
    if word[1] != "ready":  # withdrawn, or forged
        if "what was taken back is not passed by" in d.broken and word[1] == "committed":
            yield when(lambda m: m["word", slot] != word, "looks again and again")
            return None
        yield call(settle, d, serial)
        return "settled"
    if "take_up() does not compare" in d.broken:
        yield store(("word", slot), (serial, "claimed"), release=True)
    else:
        # compare_exchange_strong(word, claimed, acq_rel)
        won = yield cas(("word", slot), word, (serial, "claimed"), lambda seen: seen[0])
        if not won:
            yield call(settle, d, serial)  # settle(worker, serial, Outcome::aborted);
            return "settled"
    first = yield load(("first", slot))  # std::memcpy(&claim.decided, ...): the one copy
    second = yield load(("second", slot))
    return serial, first, second


def worker(d: Desk) -> Steps:
    """Worker::take() with Pool::pick_decided(), over and over."""
    yield when(lambda m: _ready(d, m), "staged()")
    yield call(enter, d)
    claimed = yield call(take_up, d)
    if claimed is not None and claimed != "settled":
        serial, first, second = claimed
        active = yield load("active")  # check(): is_active(), and all that the fields say
        if (active or "check() does not look at the seat" in d.broken) and BAD not in (first, second):
            if "the desk is read again" in d.broken:
                second = yield load(("second", serial % d.depth))
            # run_claimed(): begin_claimed(); a death from here on ends it as its record says
            yield act(lambda m: _begin(d, m, serial, first, second), f"carries out {serial}")
        yield call(settle, d, serial)  # commit()
    yield unlock("role")
    yield goto(worker, d)


def _ready(d: Desk, m: Memory) -> bool:
    word = m["word", m["next"] % d.depth]
    return bool(word[0] == m["next"] and word[1] != "empty")


def _begin(d: Desk, m: Memory, serial: int, first: int, second: int) -> None:
    if BAD in (first, second):
        raise BrokenError("what is carried out is not what was checked")
    if (first, second) != (serial, serial):
        raise BrokenError(f"serial {serial} is carried out as {first}, {second}")
    if serial in m["taken_back"]:
        raise BrokenError(f"{serial} was taken back, and is carried out")
    if serial in m["begun"]:
        raise BrokenError(f"{serial} is carried out twice")
    if m["off"]:
        raise BrokenError(f"{serial} is carried out, and its agent counts no more")
    m["begun"] += (serial,)


def enter(d: Desk) -> Steps:
    taken = yield lock("role")
    if taken == "after_death":
        yield call(restate, d)


def restate(d: Desk) -> Steps:
    """begin_restating(): whose claimer has died."""
    for slot in range(d.depth):
        word = yield load(("word", slot))
        if word[1] != "claimed":
            continue
        serial = yield load("next")
        if word[0] == serial and "a dead one's claim moves nothing on" not in d.broken:
            yield call(settle, d, serial)
        else:
            yield store(("word", slot), (word[0], "committed"), release=True)


def put_off(d: Desk) -> Steps:
    """Pool::unseat_agent(), at any moment: deactivate()."""
    yield call(enter, d)
    if "the desk is voided first" not in d.broken:
        yield store("active", False)  # active.store(0, seq_cst)
    for _ in range(d.depth):  # void_desk()
        claimed = yield call(take_up, d)
        if claimed is None:
            break
        if claimed != "settled":
            yield call(settle, d, claimed[0])
    if "the desk is voided first" in d.broken:
        yield act(lambda m: m.__setitem__("off", True), "ghost: off")
        yield unlock("role")
        yield call(enter, d)
        yield store("active", False)
    yield act(lambda m: m.__setitem__("off", True), "ghost: off")
    yield unlock("role")


def replacement(d: Desk, number: int) -> Steps:
    """The next process at that place."""
    yield when(lambda m: m["gone"] >= number, "the one before has died")
    yield goto(worker, d)


def model(d: Desk, order: str = "weak", **options: Any) -> Model:
    processes = [Process("agent", agent, (d,), mortal=d.agent_dies)]
    for i in range(d.workers):
        body, args = (worker, (d,)) if i == 0 else (replacement, (d, i))
        processes.append(Process(f"worker{i}", body, args, daemon=True, mortal=i + 1 < d.workers))
    if d.put_off:
        processes.append(Process("host", put_off, (d,)))
    if d.liar:
        processes.append(Process("liar", liar, (d,)))

    def on_death(m: Memory, at: int) -> None:
        if at > 0:
            m["gone"] += 1

    def final(m: Memory) -> str | None:
        if m["next"] <= m["published"]:
            return f"the desk is stuck at {m['next']}: {m['published']} were staged"
        word: Word
        for slot in range(d.depth):
            word = m["word", slot]
            if word[1] == "claimed":
                return f"{word[0]} is claimed for ever"
        due = set(range(1, m["published"] + 1)) - m["taken_back"] - set(m["begun"])
        if due and not (d.put_off or d.liar or m["gone"]):
            return f"never carried out: {sorted(due)}"
        return None

    deaths = d.workers - 1 + (1 if d.agent_dies else 0)
    return Model(processes, d.memory(), order, deaths, on_death, final=final, **options)
