"""One pool dealt out to two agents: core/host/dealing.cpp, on seats.cpp, suspended.cpp and repair.cpp, as a model.

Theory of operation: as seats.py, with a seat for each agent: each worker belongs to one of them, and each request from
when it was dealt. What is done under the role is taken apart into the statements after which its holder may die.
Which agent a request is dealt to, and whether an idle worker takes one over, is left open: whatever agents/dealing.hpp
chooses is among it. An agent decides anything that its own words let it believe, for its own workers. The host follows
a `script`: a seat is taken, upgraded, put off (its agent died, froze, lied or left: at any moment) and taken again,
while the others decide on.

Whenever the role is free, a seat that is taken has a word for a request exactly if the request is there and its own;
of one that has ended, from when its record is given back.
Kept beside: `ends`, `runs`, `refused`, as in seats.py. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .explore import Model, Process
from .operation import BrokenError, Memory, Steps, act, call, choose, goto, lock, look, next_dead, unlock, when
from .seated import queue_again
from .seats import LIVE, NOBODY, end_record, end_request, is_past, put

AT = (0, 1)  # the seats


@dataclass(frozen=True)
class Dealing:
    script: tuple[tuple[str, int], ...]  # ("seat", 0), ("off", 0), …: what becomes of the seats
    records: int = 1
    workers: int = 2  # worker w is seat w % 2's
    dealt: int = 0  # the seat that record 0 was dealt to before any agent came; the others in turn
    decisions: int = 1  # of each agent that comes …
    deciders: tuple[int, ...] | None = None  # … and is one of these, numbered as they come; None: all
    takes: int = 1  # so often one seat takes over from the other
    leaves: int = 0
    cancels: bool = False
    deaths: int = 0  # of worker 0
    idempotent: bool = False
    broken: frozenset[str] = frozenset()

    def incarnations(self) -> list[tuple[int, int]]:
        """(number from 1, seat) of all agents that come."""
        return list(enumerate((at for what, at in self.script if what == "seat"), 1))

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"role": 0, "queue": tuple(range(self.records)), "offered": frozenset()}
        memory |= {
            "ends": frozenset(),
            "runs": (),
            "refused": frozenset(),
            "dead": (),
            "idle": 0,
            "left": 0,
            "taken": 0,
        }
        for i in range(self.records):
            memory["state", i] = (0, "queued")
            memory["worker", i] = memory["suspended", i] = NOBODY
            memory["client", i] = "waits"
            memory["dealt", i] = (0, (i + self.dealt) % 2)  # generation, seat
            for at in AT:
                memory["word", at, i], memory["tseq", at, i] = None, 0
        for at in AT:
            memory["seated", at] = 0
        for number, at in self.incarnations():
            memory["active", number] = False
            for w in range(at, self.workers, 2):
                memory["slot", number, w] = None  # (record, generation, tseq, state)
        return memory


# ---- whose it is, and what is told ---------------------------------------------------------------------------------


def seat_of(m: Memory, i: int) -> int:
    """Pool::dealt_seat()."""
    held = m["suspended", i]
    return int(held % 2 if held != NOBODY else m["dealt", i][1])


def tell(m: Memory, at: int, i: int, may_run: bool | None) -> None:
    m["tseq", at, i] += 1
    m["word", at, i] = None if may_run is None else (m["state", i][0], m["tseq", at, i], may_run)


def forget_at(m: Memory, at: int, i: int) -> None:
    """ended(): nothing for what it was never told of."""
    if m["seated", at] and m["word", at, i] is not None:
        tell(m, at, i, None)


def free(s: Dealing, m: Memory, i: int) -> None:
    """Pool::free_record(), tell_end()."""
    if m["state", i][1] == "free":
        raise BrokenError(f"record {i} is freed twice")
    m["offered"] -= {i}
    if "only the worker's seat hears of the end" not in s.broken:
        forget_at(m, m["dealt", i][1], i)  # forget_dealt()
    forget_at(m, seat_of(m, i), i)
    m["state", i] = (m["state", i][0] + 1, "free")
    m["suspended", i] = NOBODY


def offer(s: Dealing, i: int, left: bool) -> Steps:
    """Pool::offer_to_agent(), deal()."""
    yield call(deal, s, i, left)
    yield act(lambda m: _offer(m, i), f"offer_to_agent({i})")


def _offer(m: Memory, i: int) -> None:
    at = seat_of(m, i)
    if not m["seated", at]:
        if m["suspended", i] == NOBODY:
            m["queue"] += (i,)
        return
    m["offered"] |= {i}
    tell(m, at, i, True)


def deal(s: Dealing, i: int, left: bool) -> Steps:
    before = yield look(lambda m: m["dealt", i][1], "before")
    if left:
        now = yield look(lambda m: seat_of(m, i), "seat_of(record)")
        if now == before:
            return
        yield act(lambda m: _dealt(m, i, now), f"dealt to {now}")
        if "who had it is not told when it leaves" not in s.broken:
            yield act(lambda m: forget_at(m, before, i), f"forget_at({before})")
        return
    there = yield look(lambda m: m["dealt", i][0] == m["state", i][0], "has it been there before?")
    if there:
        return
    to = yield choose(*AT)
    yield act(lambda m: _dealt(m, i, to), f"dealt to {to}")
    if before != to and "who had it is not told when it runs anew" not in s.broken:
        yield act(lambda m: forget_at(m, before, i), f"forget_at({before})")


def _dealt(m: Memory, i: int, at: int) -> None:
    m["dealt", i] = (m["state", i][0], at)


def take_over(s: Dealing, me: int) -> Steps:
    """By a worker that has nothing to do, or the sweeper for it: one that waits at the other seat."""
    mine, theirs = me % 2, 1 - me % 2
    found = yield act(lambda m: _to_take(s, m, mine, theirs), "seat_to_take_from()")
    if found == NOBODY:
        return
    if "who has it is not told that it is taken" not in s.broken:
        yield act(lambda m: forget_at(m, theirs, found), f"theirs->ended({found})")
    yield act(lambda m: _dealt(m, found, mine), f"dealt to {mine}")
    if "who takes it is not told" not in s.broken:
        yield act(lambda m: tell(m, mine, found, True), f"mine->ready({found})")


def _to_take(s: Dealing, m: Memory, mine: int, theirs: int) -> int:
    if not (m["seated", mine] and m["seated", theirs]) or m["taken"] >= s.takes:
        return NOBODY
    if any(seat_of(m, i) == mine for i in m["offered"]):
        return NOBODY
    waits = [i for i in sorted(m["offered"]) if seat_of(m, i) == theirs and m["suspended", i] == NOBODY]
    if not waits:
        return NOBODY
    m["taken"] += 1
    return int(waits[0])


# ---- seats come and go, and a death under the role -----------------------------------------------------------------


def restate(s: Dealing, at: int) -> Steps:
    """Pool::restate(at): from the records."""
    yield act(lambda m: _offer_queue(m, at), f"the run queue of {at} is offered")
    for i in range(s.records):
        yield act(lambda m, i: _restate(m, at, i), f"word {i} of {at}", i)


def _offer_queue(m: Memory, at: int) -> None:
    mine = {i for i in m["queue"] if seat_of(m, i) == at}
    m["offered"] |= mine
    m["queue"] = tuple(i for i in m["queue"] if i not in mine)


def _restate(m: Memory, at: int, i: int) -> None:
    state = m["state", i][1]
    if state == "free" or seat_of(m, i) != at:
        if m["word", at, i] is not None:
            tell(m, at, i, None)
        return
    if state == "queued" and m["suspended", i] != NOBODY:
        m["offered"] |= {i}
    tell(m, at, i, state == "queued" and i in m["offered"])


def enter(s: Dealing) -> Steps:
    taken = yield lock("role")
    if taken == "after_death":
        yield call(repair, s)


def repair(s: Dealing) -> Steps:
    yield act(_forget, "queue and offered are empty")
    for i in range(s.records):
        yield act(lambda m, i: _rebuild(s, m, i), f"record {i}", i)
    for at in AT:
        number = yield look(lambda m, at: m["seated", at], f"seated {at}", at)
        if number:
            for w in range(at, s.workers, 2):
                yield act(_release, f"desk {w}", number, w)
            if "words are not written anew" not in s.broken:
                yield call(restate, s, at)


def _forget(m: Memory) -> None:
    m["queue"], m["offered"] = (), frozenset()


def _rebuild(s: Dealing, m: Memory, i: int) -> None:
    state = m["state", i][1]
    if state not in ("free", *LIVE) and m["worker", i] == NOBODY:
        free(s, m, i)
    elif state == "queued" and m["suspended", i] == NOBODY:
        m["worker", i] = NOBODY
        m["queue"] += (i,)


def _release(m: Memory, number: int, w: int) -> None:
    slot = m["slot", number, w]
    if slot is not None and slot[3] == "claimed":
        m["slot", number, w] = None


def host(s: Dealing) -> Steps:
    number = 0
    for what, at in (*s.script, ("off", 0), ("off", 1)):
        yield call(enter, s)
        before = yield look(lambda m, at: m["seated", at], f"seat {at}", at)
        if what == "seat":
            number += 1
            yield call(seat, s, at, before, number)
        elif before:
            yield call(unseat, s, at, before)
        yield unlock("role")


def seat(s: Dealing, at: int, before: int, number: int) -> Steps:
    """Pool::seat_agent(): the first, again, or in the place of another one."""
    if before:
        yield call(void, s, at, before)
    yield put(("seated", at), number, f"incarnation {number} at {at}")
    yield put(("active", number), True, "activate()")
    yield call(restate, s, at)


def unseat(s: Dealing, at: int, before: int) -> Steps:
    """Pool::unseat_agent()."""
    yield put(("seated", at), 0, f"nobody at {at}")
    for i in range(s.records):
        yield act(lambda m, i: _retake(s, m, at, i), f"retake({i})", i)
    yield call(void, s, at, before)


def _retake(s: Dealing, m: Memory, at: int, i: int) -> None:
    if i not in m["offered"] or "what it was dealt stays with it" in s.broken:
        return
    if seat_of(m, i) != at:
        return
    m["offered"] -= {i}
    if m["suspended", i] == NOBODY:
        m["queue"] += (i,)


def void(s: Dealing, at: int, number: int) -> Steps:
    yield put(("active", number), False, "deactivate()")
    for w in range(at, s.workers, 2):
        yield put(("slot", number, w), None, f"void_desk({w})")


# ---- agents ----------------------------------------------------------------------------------------------------------


def agent(s: Dealing, number: int, at: int, made: int = 0) -> Steps:
    """Anything that can be decided on what its words say; nothing, too: it may be dead."""
    if made == s.decisions:
        return
    yield when(lambda m: m["active", number], "decides")
    i, w = yield choose(*((i, w) for i in range(s.records) for w in range(at, s.workers, 2)))
    yield act(lambda m: _stage(m, number, at, w, i), f"stages {i} for {w}")
    yield goto(agent, s, number, at, made + 1)


def _stage(m: Memory, number: int, at: int, w: int, i: int) -> None:
    word = m["word", at, i]
    if word is not None and word[2] and m["slot", number, w] is None:
        m["slot", number, w] = (i, word[0], word[1], "ready")


# ---- workers ---------------------------------------------------------------------------------------------------------


def worker(s: Dealing, me: int) -> Steps:
    yield when(lambda m: _work(s, m, me), "work_ready()")
    yield call(enter, s)
    i = yield call(pick, s, me)
    yield unlock("role")
    if i != NOBODY:
        yield call(execute, s, me, i)
    yield goto(worker, s, me)


def _held(s: Dealing, m: Memory, me: int) -> list[int]:
    return [i for i in range(s.records) if m["suspended", i] == me and m["state", i][1] not in ("free", "running")]


def _work(s: Dealing, m: Memory, me: int) -> bool:
    number = m["seated", me % 2]
    slot = m["slot", number, me] if number else None
    mine = any(i not in m["offered"] or m["state", i][1] != "queued" or is_past(m, i) for i in _held(s, m, me))
    takes = bool(number and m["seated", 1 - me % 2] and m["offered"]) and m["taken"] < s.takes
    return bool(m["queue"]) or (slot is not None and slot[3] == "ready") or mine or takes


def pick(s: Dealing, me: int) -> Steps:
    for i in range(s.records):
        yield act(lambda m, i: _shed(s, m, me, i), f"sheds {i}", i)
    number = yield look(lambda m: m["seated", me % 2], "seat_at()")
    if number:
        found = yield call(pick_decided, s, me, number)
        if found != NOBODY:
            return found
    while True:
        i = yield act(lambda m: _pop(s, m, me), "pick_default()")
        if i == NOBODY:
            break
        fits = yield act(lambda m, i: m["suspended", i] == me or _fit(s, m, i), f"fit({i})", i)
        if fits:
            yield put(("worker", i), me, "record.worker")
            began = yield act(_begin, f"begin({i})", i)
            if began:
                return i
    yield call(take_over, s, me)
    return NOBODY


def _shed(s: Dealing, m: Memory, me: int, i: int) -> None:
    state = m["state", i][1]
    if m["suspended", i] == me and state not in ("free", "running") and (state != "queued" or is_past(m, i)):
        end_record(m, i, "cancelled")
        free(s, m, i)


def _pop(s: Dealing, m: Memory, me: int) -> int:
    for i in range(s.records):
        if m["suspended", i] == me and i not in m["offered"] and m["state", i][1] == "queued":
            return i
    if not m["queue"]:
        return NOBODY
    i, *rest = m["queue"]
    m["queue"] = tuple(rest)
    return int(i)


def _fit(s: Dealing, m: Memory, i: int) -> bool:
    if m["state", i][1] == "queued" and not is_past(m, i):
        return True
    if m["suspended", i] == NOBODY:
        end_record(m, i, "cancelled")
        free(s, m, i)
    return False


def _begin(m: Memory, i: int) -> bool:
    generation, state = m["state", i]
    if state != "queued":
        return False
    m["state", i] = (generation, "running")
    return True


def pick_decided(s: Dealing, me: int, number: int) -> Steps:
    """HostSeat::claim(), Pool::run_claimed()."""
    claimed = yield act(lambda m: _claim(m, me, number), "claim")
    if claimed is None:
        return NOBODY
    i = claimed[0]
    good = yield act(lambda m: _check(s, m, me, claimed), f"checks {claimed}")
    if good:
        good = yield act(lambda m: _fit_claimed(s, m, me, i), f"fit_claimed({i})")
    if good:
        yield put(("worker", i), me, "record.worker")
        good = yield act(lambda m: _begin_decided(m, i, me), f"begin({i})")
    yield put(("slot", number, me), None, "commit()")
    if not good:
        return NOBODY
    yield act(
        lambda m: m.__setitem__(("word", me % 2, i), (m["state", i][0], m["tseq", me % 2, i], False)), f"word {i}"
    )
    return i


def _claim(m: Memory, me: int, number: int) -> tuple[int, int, int] | None:
    slot = m["slot", number, me]
    if slot is None or slot[3] != "ready":
        return None
    m["slot", number, me] = (*slot[:3], "claimed")
    return (slot[0], slot[1], slot[2])


def _check(s: Dealing, m: Memory, me: int, claimed: tuple[int, int, int]) -> bool:
    i, generation, tseq = claimed
    word = m["word", me % 2, i]
    if word is None or word[0] != generation or not word[2]:
        return False
    if word[1] != tseq:
        return False
    return m["suspended", i] in (NOBODY, me)


def _fit_claimed(s: Dealing, m: Memory, me: int, i: int) -> bool:
    if i not in m["offered"]:
        return False
    if m["suspended", i] != NOBODY and m["state", i][1] != "queued":
        return False  # its worker lets go of it
    m["offered"] -= {i}
    return m["suspended", i] == me or _fit(s, m, i)


def _begin_decided(m: Memory, i: int, me: int) -> bool:
    if seat_of(m, i) != me % 2:
        raise BrokenError(f"a decision of agent {me % 2} is carried out, and request {i} is agent {seat_of(m, i)}'s")
    return _begin(m, i)


def execute(s: Dealing, me: int, i: int) -> Steps:
    claimed = yield act(lambda m: _claim_request(s, m, me, i), f"runs {i}")
    leaves = (yield choose(False, True)) if claimed and s.leaves else False
    if leaves:
        left = yield call(suspend, s, me, i)
        if left:
            return
    if claimed:
        yield act(lambda m: end_request(m, i, "done"), f"end_request({i})")
    yield act(lambda m: end_record(m, i, "done"), f"end_record({i})")
    yield call(enter, s)
    yield act(lambda m: free(s, m, i), f"give_back({i})")
    yield unlock("role")


def _claim_request(s: Dealing, m: Memory, me: int, i: int) -> bool:
    if m["state", i][1] == "running" and m["worker", i] != me:
        raise BrokenError(f"worker {me} runs {i}, which is worker {m['worker', i]}'s")
    if is_past(m, i):
        return False
    if i in m["refused"]:
        raise BrokenError(f"{i} was cancelled before it began, and runs")
    begun = (i, m["state", i][0])
    if m["suspended", i] != me:
        if any(run[0] == i for run in m["runs"]) and not (s.idempotent and begun not in m["runs"]):
            raise BrokenError(f"{i} runs twice")
        m["runs"] += (begun,)
    m["suspended", i] = NOBODY
    m["client", i] = "running"
    return True


def suspend(s: Dealing, me: int, i: int) -> Steps:
    more = yield act(lambda m: _may_leave(s, m), "leaves")
    if not more:
        return False
    yield call(enter, s)
    yield put(("suspended", i), me, "record.suspended")
    queued = yield act(lambda m: queue_again(m, i), "compare_exchange_strong(running, queued)")
    if queued:
        yield call(offer, s, i, True)
    yield unlock("role")
    return True


def _may_leave(s: Dealing, m: Memory) -> bool:
    if m["left"] >= s.leaves:
        return False
    m["left"] += 1
    return True


# ---- deaths and cancels ----------------------------------------------------------------------------------------------


def bury(s: Dealing) -> Steps:
    yield when(lambda m: bool(m["dead"]), "hears of a death")
    dead = yield act(next_dead, "whose")
    yield call(enter, s)
    for i in range(s.records):
        again = yield act(lambda m, i: _bury(s, m, dead, i), f"buries {i}", i)
        if again:
            yield call(offer, s, i, False)
    number = yield look(lambda m: m["seated", dead % 2], "seated")
    if number:
        yield put(("slot", number, dead), None, "worker_gone()")
    yield unlock("role")
    yield act(lambda m: m.__setitem__("idle", m["idle"] + 1), "another one takes its place")
    yield goto(bury, s)


def _bury(s: Dealing, m: Memory, dead: int, i: int) -> bool:
    """True: it is to be offered anew."""
    state = m["state", i][1]
    held = m["suspended", i] == dead
    if m["worker", i] != dead or state == "free" or (state == "queued" and not held):
        return False
    if state in LIVE and s.idempotent and not is_past(m, i):
        m["offered"] -= {i}
        m["worker", i] = m["suspended", i] = NOBODY
        m["state", i] = (m["state", i][0] + 1, "queued")
        return True
    if end_record(m, i, "failed"):
        end_request(m, i, "failed")
    free(s, m, i)
    return False


def cancel(s: Dealing, i: int) -> Steps:
    """By its client; or by the host for it, which ends what runs at any moment (Sweeper::end_running())."""
    yield act(lambda m: _cancel(m, i), f"cancels {i}")
    yield act(lambda m: end_record(m, i, "cancelled") if m["state", i][1] == "running" else None, f"end_record({i})")


def _cancel(m: Memory, i: int) -> None:
    if m["client", i] == "waits":
        m["refused"] |= {i}
    end_request(m, i, "cancelled")


def replacement(s: Dealing, number: int) -> Steps:
    yield when(lambda m: m["idle"] >= number, "starts")
    yield goto(worker, s, 0)


# ---- the whole -------------------------------------------------------------------------------------------------------


def model(s: Dealing, **options: Any) -> Model:
    processes = [Process(f"worker{w}", worker, (s, w), daemon=True, mortal=w < s.deaths) for w in range(s.workers)]
    processes += [Process(f"again{n}", replacement, (s, n), daemon=True) for n in range(1, s.deaths + 1)]
    processes += [Process("host", host, (s,)), Process("sweeper", bury, (s,), daemon=True)]
    processes += [
        Process(f"agent{number}", agent, (s, number, at), daemon=True)
        for number, at in s.incarnations()
        if s.deciders is None or number in s.deciders
    ]
    if s.cancels:
        processes.append(Process("client", cancel, (s, 0), daemon=True))

    def on_death(m: Memory, at: int) -> None:
        m["dead"] += (at,)

    def invariant(m: Memory) -> str | None:
        if m["role"] != 0:
            return None
        for at in AT:
            for i in range(s.records):
                state = m["state", i][1]
                said, ours = m["word", at, i] is not None, state in LIVE and seat_of(m, i) == at
                over = state not in ("free", *LIVE)  # and not given back yet: its end is told then
                if m["seated", at] and said != ours and not over:
                    return f"agent {at} {'still has' if said else 'has not heard of'} request {i}"
        return None

    def final(m: Memory) -> str | None:
        missing = set(range(s.records)) - m["ends"]
        if missing:
            return f"requests {sorted(missing)} never end"
        if any(m["state", i][1] != "free" for i in range(s.records)) or m["queue"] or m["offered"]:
            return "all requests have ended, and some record is not free"
        return None

    return Model(processes, s.memory(), "sc", s.deaths, on_death, invariant, final, **options)
