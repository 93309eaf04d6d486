"""The fair turns of core/host/pool.cpp (admit, pick, end_queued: tag, charge, finish, virtual_time), with the role's
holder dying after any statement, a client that cancels, and deadlines that pass.

Theory of operation: every request costs the same, so times are counted in requests. A request has the record of its
number. `owed` is a ghost: what the session's `finish` would be had nobody died; the real one may be larger by one
request a death (the session waits that much longer), and never smaller (nobody is served before his turn). `passed`
counts, for each queued request, how many of another session's were served since it was queued. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .explore import Model, Process
from .operation import BrokenError, Memory, Op, Steps, act, call, goto, lock, look, next_dead, unlock, when

NOBODY = -1
COST = 1
ENDS = ("done", "cancelled", "expired", "failed")


@dataclass(frozen=True)
class Turns:
    sessions: tuple[int, ...]  # for each request: whose it is
    published: int = 0  # so many are in the rings at the start; the others come when something has been served
    late: int = 0  # how many must have been served before
    cancelled: tuple[int, ...] = ()
    expires: bool = False  # the host finds at some moment that the deadlines of what is queued have passed
    workers: int = 1
    deaths: int = 0
    overtaken: int = 2  # served of another session, at most, while a request waits
    broken: frozenset[str] = frozenset()

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"role": 0, "virtual_time": 0, "heap": (), "dead": (), "served": 0, "ran": ()}
        for session in set(self.sessions):
            mine = tuple(i for i, other in enumerate(self.sessions) if other == session)
            memory["ring", session] = tuple(i for i in mine if i < self.published)
            memory["finish", session] = memory["owed", session] = 0
        for i in range(len(self.sessions)):
            memory["state", i] = "free"
            memory["worker", i] = NOBODY
            memory["word", i] = "none"
            memory["tag", i] = memory["charge", i] = 0
            memory["passed", i] = 0
        return memory


def put(name: Hashable, value: Any, text: str) -> Op:
    return act(lambda m: m.__setitem__(name, value), text)


def enter(t: Turns) -> Steps:
    taken = yield lock("role")
    if taken != "after_death":
        return
    yield put("heap", (), "heap_size = 0")  # Pool::rebuild()
    for i, session in enumerate(t.sessions):
        state, runner = yield look(lambda m, i: (m["state", i], m["worker", i]), f"record {i}", i)
        if state in ENDS and runner == NOBODY:
            yield put(("state", i), "free", f"record {i} is free")
        elif state in ("queued", "running"):
            # if (record.ring_position == line.head) poke(line.head, ...);
            yield act(_retire, f"head of session {session}", session, i)
            if state == "queued":
                yield put(("worker", i), NOBODY, "record.worker = nobody")
                yield act(_push, f"heap_push({i})", i)


def leave(t: Turns) -> Steps:
    yield look(lambda m: _check(t, m), "the state is whole")
    yield unlock("role")


def _check(t: Turns, m: Memory) -> None:
    queued = {i for i in range(len(t.sessions)) if m["state", i] == "queued"}
    if set(m["heap"]) != queued or len(m["heap"]) != len(queued):
        raise BrokenError(f"the run queue is {m['heap']}, queued are {sorted(queued)}")
    for session in set(t.sessions):
        now = m["virtual_time"]
        real, owed = max(now, m["finish", session]), max(now, m["owed", session])
        if not owed <= real <= owed + COST * t.deaths:
            raise BrokenError(f"session {session} is charged up to {real}, and owes up to {owed}")
        if m["finish", session] < 0:
            raise BrokenError(f"session {session} is charged {m['finish', session]}")


def _push(m: Memory, i: int) -> None:
    m["heap"] = tuple(sorted((*m["heap"], i), key=lambda i: (m["tag", i], i)))


def _retire(m: Memory, session: int, i: int) -> None:
    if m["ring", session][:1] == (i,):
        m["ring", session] = m["ring", session][1:]


# ---- Pool ------------------------------------------------------------------------------------------------------------


def drain(t: Turns) -> Steps:
    for session in sorted(set(t.sessions)):
        while True:
            i = yield look(lambda m, s: m["ring", s][0] if m["ring", s] else NOBODY, "ring.peek()", session)
            if i == NOBODY:
                break
            yield call(admit, t, session, i)
            yield act(_retire, "retire()", session, i)


def admit(t: Turns, session: int, i: int) -> Steps:
    now, finish = yield look(lambda m: (m["virtual_time"], m["finish", session]), "virtual_time, line.finish")
    yield put(("worker", i), NOBODY, "record.worker = nobody")
    yield put(("charge", i), COST, f"record.charge = {COST}")
    tag = finish if "a session that was away goes back in time" in t.broken else max(now, finish)
    yield put(("tag", i), tag, f"record.tag = {tag}")
    if "the charge is forgotten" not in t.broken:
        yield put(("finish", session), tag + COST, f"line.finish = {tag + COST}")
    yield act(_queue, f"record {i} is queued", session, i)  # store_state(record, State::queued);
    yield act(_push, f"heap_push({i})", i)


def _queue(m: Memory, session: int, i: int) -> None:
    m["state", i] = "queued"
    m["passed", i] = 0
    m["owed", session] = m["tag", i] + COST


def end_queued(t: Turns, i: int, end: str) -> Steps:
    session = t.sessions[i]
    charge = yield look(lambda m: m["charge", i], "record.charge")
    if "refunded before the charge is taken back" not in t.broken and "the charge stays" not in t.broken:
        yield act(_take_back, "record.charge = 0", session, i)
    if "nothing is refunded" not in t.broken:
        yield act(_refund, f"session {session} gets {charge} back", session, i, charge)
    if "refunded before the charge is taken back" in t.broken:
        yield act(_take_back, "record.charge = 0", session, i)
    yield act(_tell, f"end_request({i}, {end})", i, end)


def _refund(m: Memory, session: int, i: int, charge: int) -> None:
    m["finish", session] -= min(charge, m["finish", session])
    _owes_less(m, session, i)


def _take_back(m: Memory, session: int, i: int) -> None:
    m["charge", i] = 0
    _owes_less(m, session, i)


def _owes_less(m: Memory, session: int, i: int) -> None:
    """Once a request, as soon as it is known that it will not run."""
    if m["passed", i] != -1:
        m["owed", session] -= min(COST, m["owed", session])
        m["passed", i] = -1


def _tell(m: Memory, i: int, end: str) -> None:
    if m["word", i] == "none":
        m["word", i] = end


def pick(t: Turns, me: int) -> Steps:
    while True:
        i = yield look(lambda m: m["heap"][0] if m["heap"] else NOBODY, "heap[0]")
        if i == NOBODY:
            return NOBODY
        yield act(lambda m: m.__setitem__("heap", m["heap"][1:]), "heap_pop()")
        gone, tag, now = yield look(
            lambda m, i: (m["word", i] in ENDS, m["tag", i], m["virtual_time"]), f"record {i}", i
        )
        if not gone:
            break
        yield call(end_queued, t, i, "cancelled")
        yield put(("state", i), "cancelled", f"end_record({i})")
        yield put(("state", i), "free", f"give_back({i})")
    yield put(("worker", i), me, f"record.worker = {me}")
    yield act(lambda m: _serve(t, m, i), f"record {i} is running")
    if tag > now or "virtual time goes back" in t.broken:
        yield put("virtual_time", tag, f"virtual_time = {tag}")
    return i


def _serve(t: Turns, m: Memory, i: int) -> None:
    m["state", i] = "running"
    for other, session in enumerate(t.sessions):
        if m["state", other] == "queued" and session != t.sessions[i]:
            m["passed", other] += 1
            if m["passed", other] > t.overtaken:
                raise BrokenError(f"{m['passed', other]} of session {t.sessions[i]} are served while {other} waits")


# ---- Worker, sweeper, clients ----------------------------------------------------------------------------------------


def worker(t: Turns, me: int, finished: int = NOBODY) -> Steps:
    yield when(
        lambda m: finished != NOBODY or bool(m["heap"]) or any(m["ring", s] for s in set(t.sessions)), "has work"
    )
    yield call(enter, t)
    if finished != NOBODY:
        yield put(("state", finished), "free", f"give_back({finished})")
    yield call(drain, t)
    i = yield call(pick, t, me)
    yield call(leave, t)
    if i == NOBODY:
        yield goto(worker, t, me)
    yield act(_run, f"runs {i}", i)
    yield goto(worker, t, me, i)


def _run(m: Memory, i: int) -> None:
    if i in m["ran"]:
        raise BrokenError(f"{i} runs twice")
    m["ran"] = tuple(sorted((*m["ran"], i)))
    m["served"] += 1
    _tell(m, i, "done")
    m["state", i] = "done"


def bury(t: Turns) -> Steps:
    yield when(lambda m: bool(m["dead"]), "hears of a death")
    dead = yield act(next_dead, "whose")
    yield call(enter, t)
    for i in range(len(t.sessions)):
        state, runner = yield look(lambda m, i: (m["state", i], m["worker", i]), f"record {i}", i)
        if runner == dead and state not in ("free", "queued"):
            yield act(_tell, f"end_running({i})", i, "failed")
            yield put(("state", i), "free", f"give_back({i})")
    yield call(leave, t)
    yield goto(bury, t)


def expire(t: Turns) -> Steps:
    """Sweeper::expire(), at any moment."""
    yield when(lambda m: bool(m["heap"]), "deadlines pass")
    yield call(enter, t)
    for i in range(len(t.sessions)):
        state = yield look(lambda m, i: m["state", i], f"record {i}", i)
        if state == "queued":
            yield put(("state", i), "expired", f"end_record({i})")
            yield call(end_queued, t, i, "expired")
    yield act(_prune, "prune()")
    yield call(leave, t)


def _prune(m: Memory) -> None:
    for i in m["heap"]:
        if m["state", i] != "queued":
            m["state", i] = "free"
    m["heap"] = tuple(i for i in m["heap"] if m["state", i] == "queued")


def latecomer(t: Turns) -> Steps:
    """The client whose requests come after some of the other's have been served."""
    yield when(lambda m: bool(m["served"] >= t.late), "comes late")
    for i in range(t.published, len(t.sessions)):
        session = t.sessions[i]
        yield act(lambda m, s, i: m.__setitem__(("ring", s), (*m["ring", s], i)), f"publishes {i}", session, i)


def cancel(t: Turns, i: int) -> Steps:
    yield when(lambda m: m["state", i] != "free", "is queued")
    yield act(_tell, f"cancel({i})", i, "cancelled")


def model(t: Turns, **options: Any) -> Model:
    processes = [Process(f"worker{i}", worker, (t, i), daemon=True, mortal=i < t.deaths) for i in range(t.workers)]
    if t.published < len(t.sessions):
        processes.append(Process("latecomer", latecomer, (t,)))
    processes += [Process(f"cancels{i}", cancel, (t, i), daemon=True) for i in t.cancelled]
    if t.expires:
        processes.append(Process("sweeper", expire, (t,), daemon=True))
    if t.deaths:
        processes.append(Process("burier", bury, (t,), daemon=True))

    def on_death(memory: Memory, at: int) -> None:
        memory["dead"] += (at,)

    def final(m: Memory) -> str | None:
        forgotten = [i for i in range(len(t.sessions)) if m["word", i] == "none"]
        return f"requests {forgotten} never end" if forgotten else None

    return Model(processes, t.memory(), order="sc", deaths=t.deaths, on_death=on_death, final=final, **options)
