"""Requests between an agent and a pool's workers: core/host/seats.cpp, suspended.cpp, pool.cpp, repair.cpp and
sweeper.cpp, on claim.cpp, as a model.

Theory of operation: what is done under the role is taken apart into the statements after which its holder may die;
outside of it run clients, who end requests by their words, agents, who write decisions, and the worker while it
runs. An agent decides anything at all: any request that its words show as one that may run, for any worker, alone or
in a group of two. desk.py and notice.py have how a decision and a word are read and written; here each is one step.
There is one decision a worker and an incarnation at a time.

`offered`: with the agent instead of in the run queue (`queue`). A record's word is (generation, state). `suspended`:
the worker that holds what it has begun. A worker that dies is replaced by another one at the same place. At the end,
when the agents do nothing more, the host puts off whoever is seated, so that nothing may be left.

Kept beside: `ends`, `runs` (with the number of the attempt), `refused` (cancelled before it began). `broken`: as in
pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .operation import BrokenError, Memory, Op, Steps, act, call, choose, goto, lock, look, next_dead, unlock, when

NOBODY = -1
LIVE = ("queued", "running")


@dataclass(frozen=True)
class Seats:
    records: int = 1
    workers: int = 1
    deaths: int = 0  # of workers
    incarnations: int = 1  # seated one after the other: an upgrade each
    decisions: int = 1  # of each incarnation
    group: bool = False  # decisions are of all workers together
    idempotent: bool = False
    leaves: int = 0  # so often a request leaves its worker and is queued again
    cancels: bool = False  # a client may end its request at any moment
    expires: bool = False  # the host finds that a deadline has passed
    broken: frozenset[str] = frozenset()

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {
            "role": 0,
            "queue": (),
            "offered": frozenset(),
            "seated": 0,
            "dead": (),
            "left": 0,
        }
        memory |= {"ends": frozenset(), "runs": (), "refused": frozenset(), "idle": 0, "stopped": frozenset()}
        for i in range(self.records):
            memory["state", i] = (0, "queued")
            memory["worker", i] = memory["suspended", i] = NOBODY
            memory["client", i] = "waits"  # its completion word: waits, running, done, cancelled, failed, expired
            memory["word", i] = None  # (generation, tseq, may run): what agents see
            memory["tseq", i] = 0
        memory["queue"] = tuple(range(self.records))
        for w in range(self.workers):
            memory["latched", w] = NOBODY
            for a in range(1, self.incarnations + 1):
                memory["slot", a, w] = None  # (record, generation, tseq, state)
        for a in range(1, self.incarnations + 1):
            memory["active", a] = False
        return memory


def put(name: Hashable, value: Any, text: str) -> Op:
    return act(lambda m: m.__setitem__(name, value), text)


# ---- what ends, and what runs ----------------------------------------------------------------------------------------


def end_request(m: Memory, i: int, how: str) -> None:
    """By whoever wins the client's word."""
    if m["client", i] in ("waits", "running"):
        m["client", i] = how
        if i in m["ends"]:
            raise BrokenError(f"request {i} ends twice")
        m["ends"] |= {i}


def is_past(m: Memory, i: int) -> bool:
    return m["client", i] not in ("waits", "running")


def end_record(m: Memory, i: int, to: str) -> bool:
    generation, state = m["state", i]
    if state not in LIVE:
        return False
    m["state", i] = (generation, to)
    return True


def free(s: Seats, m: Memory, i: int) -> None:
    """Pool::free_record(), give_back()."""
    if m["state", i][1] == "free":
        raise BrokenError(f"record {i} is freed twice")
    m["offered"] -= {i}
    tell(s, m, i, None)
    m["state", i] = (m["state", i][0] + 1, "free")
    m["suspended", i] = NOBODY


# ---- the seat --------------------------------------------------------------------------------------------------------


def tell(s: Seats, m: Memory, i: int, may_run: bool | None) -> None:
    """The word; its tseq rises. None: no such request any more."""
    m["tseq", i] += 1
    m["word", i] = None if may_run is None else (m["state", i][0], m["tseq", i], may_run)


def offer(s: Seats, m: Memory, i: int) -> None:
    """Pool::offer_to_agent()."""
    if not m["seated"]:
        if m["suspended", i] == NOBODY or "what is suspended lies in the run queue" in s.broken:
            m["queue"] += (i,)
        return
    m["offered"] |= {i}
    tell(s, m, i, True)


def restate(s: Seats) -> Steps:
    """Pool::restate(): from the records. Who dies within it leaves all of it to the next."""
    yield act(_offer_queue, "the run queue is offered")
    for i in range(s.records):
        yield act(lambda m, i: _restate(s, m, i), f"word {i}", i)


def _offer_queue(m: Memory) -> None:
    m["offered"] |= set(m["queue"])
    m["queue"] = ()


def _restate(s: Seats, m: Memory, i: int) -> None:
    state = m["state", i][1]
    if state == "queued" and m["suspended", i] != NOBODY:
        m["offered"] |= {i}  # if (ours && is_suspended(record) && record.offered == 0) put_offered(i)
    if state == "queued" and i in m["offered"]:
        tell(s, m, i, True)
    else:
        tell(s, m, i, False if state != "free" else None)


def repair(s: Seats) -> Steps:
    """Pool::repair(): rebuild(), restate()."""
    yield act(_forget, "queue and offered are empty")
    for i in range(s.records):
        yield act(lambda m, i: _rebuild(s, m, i), f"record {i}", i)
    seated = yield look(lambda m: m["seated"], "seated()")
    if not seated:
        return
    for w in range(s.workers):  # begin_restating(): whose claimer has died
        yield act(_release, f"desk {w}", w)
    if "words are not written anew" not in s.broken:
        yield call(restate, s)


def _forget(m: Memory) -> None:
    m["queue"], m["offered"] = (), frozenset()


def _rebuild(s: Seats, m: Memory, i: int) -> None:
    state = m["state", i][1]
    if state not in ("free", *LIVE) and m["worker", i] == NOBODY:  # ended while it waited
        free(s, m, i)
    elif state == "queued" and m["suspended", i] == NOBODY:
        m["worker", i] = NOBODY
        m["queue"] += (i,)


def _release(m: Memory, w: int) -> None:
    name = ("slot", m["seated"], w)
    if m[name] is not None and m[name][3] == "claimed":
        m[name] = None


def enter(s: Seats) -> Steps:
    taken = yield lock("role")
    if taken == "after_death":
        yield call(repair, s)


def seat(s: Seats, incarnation: int) -> Steps:
    """Sweeper::activate_seat(): the first, or in the place of another one."""
    yield call(enter, s)
    before = yield look(lambda m: m["seated"], "seat_at()")
    if before:
        yield put(("active", before), False, "deactivate()")
        for w in range(s.workers):
            yield put(("slot", before, w), None, f"void_desk({w})")
    yield put("seated", incarnation, f"incarnation {incarnation}")
    yield put(("active", incarnation), True, "activate()")
    yield call(restate, s)
    yield unlock("role")


def put_off(s: Seats) -> Steps:
    """Sweeper::put_off(), unseat_agent()."""
    yield call(enter, s)
    before = yield look(lambda m: m["seated"], "seated")
    if before:
        yield put("seated", 0, "seats = 0")
        for i in range(s.records):
            yield act(lambda m, i: _retake(s, m, i), f"retake({i})", i)
        yield put(("active", before), False, "active = 0")
        for w in range(s.workers):
            yield put(("slot", before, w), None, f"void_desk({w})")
    yield unlock("role")


def _retake(s: Seats, m: Memory, i: int) -> None:
    if i not in m["offered"] or "what is offered is forgotten" in s.broken:
        return
    m["offered"] -= {i}
    if m["suspended", i] == NOBODY:
        m["queue"] += (i,)


def host(s: Seats) -> Steps:
    for incarnation in range(1, s.incarnations + 1):
        yield call(seat, s, incarnation)
    # its heart stands still, it is told to leave, a request has waited too long: at any moment
    yield call(put_off, s)


# ---- agents ----------------------------------------------------------------------------------------------------------


def agent(s: Seats, me: int, made: int = 0) -> Steps:
    """Anything that can be decided on what the words say; nothing, too."""
    if made == s.decisions:
        return
    yield when(lambda m: m["active", me], "decides")
    if s.group:
        chosen = yield choose(*((a, b) for a in range(s.records) for b in range(s.records) if a != b))
        for w, i in enumerate(chosen):  # prepare() each, then publish()
            yield act(lambda m, w, i: _stage(m, me, w, i), f"stages {i} for {w}", w, i)
    else:
        i, w = yield choose(*((i, w) for i in range(s.records) for w in range(s.workers)))
        yield act(lambda m: _stage(m, me, w, i), f"stages {i} for {w}")
    yield goto(agent, s, me, made + 1)


def _stage(m: Memory, me: int, w: int, i: int) -> None:
    word = m["word", i]
    if word is not None and word[2] and m["slot", me, w] is None:
        m["slot", me, w] = (i, word[0], word[1], "ready")


# ---- deaths, cancels, deadlines --------------------------------------------------------------------------------------


def bury(s: Seats) -> Steps:
    """Sweeper::bury_worker()."""
    yield when(lambda m: bool(m["dead"]), "hears of a death")
    dead = yield act(next_dead, "whose")
    yield call(enter, s)
    for i in range(s.records):
        yield act(lambda m, i: _bury(s, m, dead, i), f"buries {i}", i)
    yield put(("latched", dead), NOBODY, "latched")
    seated = yield look(lambda m: m["seated"], "seated")
    if seated:
        yield put(("slot", seated, dead), None, "worker_gone()")
    yield unlock("role")
    yield act(lambda m: m.__setitem__("idle", m["idle"] + 1), "another one takes its place")
    yield goto(bury, s)


def _bury(s: Seats, m: Memory, dead: int, i: int) -> None:
    state = m["state", i][1]
    held = m["suspended", i] == dead
    if m["worker", i] != dead or state == "free" or (state == "queued" and not held):
        return
    if state in LIVE and s.idempotent and not is_past(m, i):
        m["offered"] -= {i}
        m["worker", i] = m["suspended", i] = NOBODY
        m["state", i] = (m["state", i][0] + 1, "queued")
        offer(s, m, i)
        return
    if end_record(m, i, "failed"):
        end_request(m, i, "failed")
    free(s, m, i)


def cancel(s: Seats, i: int) -> Steps:
    """ClientSession::cancel(): True only before it began."""
    yield act(lambda m: _cancel(m, i), f"cancels {i}")


def _cancel(m: Memory, i: int) -> None:
    if m["client", i] == "waits":
        m["refused"] |= {i}
    end_request(m, i, "cancelled")


def expire(s: Seats) -> Steps:
    """Sweeper::expire(), under the role: what is queued ends, and prune() lets go of it."""
    yield call(enter, s)
    for i in range(s.records):
        yield act(_expire, f"ends {i}", i)
        yield act(lambda m, i: _prune(s, m, i), f"prune({i})", i)
    yield unlock("role")


def _expire(m: Memory, i: int) -> None:
    if m["state", i][1] == "queued" and end_record(m, i, "expired"):
        if m["client", i] == "waits":
            m["refused"] |= {i}
        end_request(m, i, "expired")


def _prune(s: Seats, m: Memory, i: int) -> None:
    if m["state", i][1] in ("free", *LIVE):
        return
    if i in m["offered"] or i in m["queue"]:
        m["queue"] = tuple(j for j in m["queue"] if j != i)
        m["offered"] -= {i}
        if m["suspended", i] == NOBODY or "prune() frees what a worker holds" in s.broken:
            free(s, m, i)
