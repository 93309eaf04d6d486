"""Requests that are taken and do not run yet, for every reason at once: chained to another one's output, held because
their name runs in as many workers as it may, parked with their version (core/host/blocked.cpp, held.cpp, pool.cpp: fit,
start, give_back, rebuild; sweeper.cpp: park, unpark, bury_worker, close_session; host/parking.py).

Theory of operation: a request has the record of its number, and a worker looks for work wherever work_ready() says
there is some: who sleeps and who wakes him is worker.py's and blocked.py's matter, how a line's word is changed
line.py's. So a request that nobody would find is one that never ends. All limited requests are of one name, that may
run in `most` workers at once and can be parked. Each holder of the role may die after every statement. `broken`: as in
pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .explore import Model, Process
from .operation import BrokenError, Memory, Op, Steps, act, call, goto, lock, look, next_dead, unlock, when

NOBODY = -1
ENDS = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Request:
    """of: the request whose output it takes, by number. limited: of the name that is limited, and parked."""

    of: int = NOBODY
    limited: bool = False
    fails: bool = False


@dataclass(frozen=True)
class Waiting:
    requests: tuple[Request, ...]
    most: int = 1
    parks: int = 0  # times that the host parks the version, at any moment
    parked: bool = False  # at the start
    cancelled: tuple[int, ...] = ()  # requests that the client cancels at some moment
    leaves: bool = False  # the client, at some moment
    idempotent: bool = False
    workers: int = 2
    deaths: int = 0
    broken: frozenset[str] = frozenset()

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"role": 0, "ring": (), "head": 0, "heap": (), "blocked": (), "held": ()}
        memory |= {"running": 0, "version": "parked" if self.parked else "ready", "wanted": False, "told": False}
        memory["session"] = "open"
        for i in range(len(self.requests)):
            memory |= {("state", i): "free", ("worker", i): NOBODY, ("counted", i): 0, ("line", i): "none"}
        return memory | {"ran": (), "refused": frozenset(), "inside": frozenset(), "dead": (), "ends": ()}


def put(name: Hashable, value: Any, text: str) -> Op:
    return act(lambda m: m.__setitem__(name, value), text)


def _append(m: Memory, name: str, i: int) -> None:
    m[name] = tuple(sorted((*m[name], i)))


def _remove(m: Memory, name: str, i: int) -> None:
    m[name] = tuple(other for other in m[name] if other != i)


def _end(m: Memory, i: int, state: str) -> bool:
    """A compare-and-swap on the line's word."""
    if m["line", i] != "none":
        return False
    if i in m["ends"]:
        raise BrokenError(f"{i} ends twice")
    m["ends"] += (i,)
    m["line", i] = state
    return True


def _came(w: Waiting, m: Memory, i: int) -> str:
    """came(): of what a blocked record waits for."""
    if m["line", i] != "none":
        return "in vain"
    source = w.requests[i].of
    if source == NOBODY or m["line", source] == "done":
        return "well"
    if m["line", source] == "none":
        return "not yet"
    return "well" if "an end of any kind will do" in w.broken else "badly"


def _is_parked(w: Waiting, m: Memory, i: int) -> bool:
    return w.requests[i].limited and m["version"] == "parked"


# ---- Pool, under the role --------------------------------------------------------------------------------------------


def enter(w: Waiting) -> Steps:
    taken = yield lock("role")
    if taken == "after_death":
        yield call(rebuild, w)


def leave(w: Waiting) -> Steps:
    yield look(lambda m: _check(w, m), "the state is whole")
    yield unlock("role")


def _check(w: Waiting, m: Memory) -> None:
    lists = (*m["heap"], *m["blocked"], *m["held"])
    for i in range(len(w.requests)):
        if lists.count(i) > 1 or (m["state", i] == "queued" and i not in lists):
            raise BrokenError(f"record {i} is {m['state', i]}, and in {m['heap']}, {m['blocked']}, {m['held']}")
    counted = sum(m["counted", i] for i in range(len(w.requests)) if m["state", i] != "free")
    if m["running"] != counted:
        raise BrokenError(f"running is {m['running']}, counted are {counted}")


def rebuild(w: Waiting) -> Steps:
    for name in ("heap", "blocked", "held"):
        yield put(name, (), f"{name}_size = 0")
    yield put("running", 0, "model.running = 0")
    for i, request in enumerate(w.requests):
        state, runner, head, position = yield look(_record, f"record {i}", i)
        if state == "free" or (state in ENDS and runner == NOBODY):
            yield put(("state", i), "free", f"record {i} is free")
            continue
        if position == head:
            yield put("head", head + 1, f"line.head = {head + 1}")
        counted = yield look(lambda m, i: m["counted", i], f"record {i} counts", i)
        if counted and state != "queued" and "repair() does not count" not in w.broken:
            yield act(lambda m: m.__setitem__("running", m["running"] + 1), "++running")
        if state == "queued":
            yield put(("counted", i), 0, "record.counted = 0")
            yield put(("worker", i), NOBODY, "record.worker = nobody")
            chained = request.of != NOBODY and "repair() puts all into the run queue" not in w.broken
            yield act(_append, f"{'block' if chained else 'heap_push'}({i})", "blocked" if chained else "heap", i)


def _record(m: Memory, i: int) -> tuple[str, int, int, int]:
    return m["state", i], m["worker", i], m["head"], m["ring"].index(i) if i in m["ring"] else -1


def _peek(m: Memory) -> int:
    return int(m["ring"][m["head"]]) if m["head"] < len(m["ring"]) else NOBODY


def drain(w: Waiting) -> Steps:
    while True:
        i, head = yield look(lambda m: (_peek(m) if m["session"] == "open" else NOBODY, m["head"]), "ring.peek()")
        if i == NOBODY:
            break
        yield put(("worker", i), NOBODY, "record.worker = nobody")
        yield put(("counted", i), 0, "record.counted = 0")
        yield put(("state", i), "queued", f"record {i} is queued")
        chained = w.requests[i].of != NOBODY
        yield act(_append, f"{'block' if chained else 'enqueue'}({i})", "blocked" if chained else "heap", i)
        yield put("head", head + 1, f"line.head = {head + 1}")
    for i in (yield look(lambda m: m["blocked"], "blocked")):
        yield call(unblock, w, i)


def unblock(w: Waiting, i: int) -> Steps:
    """One turn of Pool::unblock()."""
    state, found, parked = yield look(
        lambda m, i: (m["state", i], _came(w, m, i), _is_parked(w, m, i)), f"blocked record {i}", i
    )
    waits = state == "queued"
    if waits and found == "well" and parked and "a parked one is unblocked" not in w.broken:
        yield call(want, w)
        return
    if waits and found == "not yet":
        return
    if waits and found != "well":
        yield act(_end, f"end_queued({i})", i, "cancelled")
        yield put(("state", i), "cancelled", f"end_record({i})")
    yield act(_remove, f"leaves blocked: {i}", "blocked", i)
    if waits and found == "well":
        yield act(_append, f"enqueue({i})", "heap", i)
    else:
        yield call(give_back, w, i)


def want(w: Waiting) -> Steps:
    """Worker::tell_wanted(), once until it is back."""
    yield put("wanted", True, "wanted_.set(version_line)")
    if "nobody is told that it is wanted" not in w.broken:
        yield put("told", True, "on_dropped(wanted)")


def pick(w: Waiting, me: int) -> Steps:
    while True:
        i = yield look(lambda m: m["heap"][0] if m["heap"] else NOBODY, "heap[0]")
        if i == NOBODY:
            return NOBODY
        yield act(_remove, f"heap_pop(): {i}", "heap", i)
        fits = yield call(fit, w, i)
        if fits:
            break
    limited = w.requests[i].limited
    yield put(("worker", i), me, f"record.worker = {me}")
    yield put(("state", i), "running", f"record {i} is running")
    if limited:
        yield put(("counted", i), 1, "record.counted = 1")
        yield act(lambda m: m.__setitem__("running", m["running"] + 1), "++model.running")
    return i


def fit(w: Waiting, i: int) -> Steps:
    state, ended, parked, full = yield look(
        lambda m, i: (m["state", i], m["line", i] != "none", _is_parked(w, m, i), m["running"] >= w.most),
        f"fit({i})",
        i,
    )
    if state != "queued" or (ended and "a cancelled one is run" not in w.broken):
        if state == "queued":
            yield put(("state", i), "cancelled", f"end_record({i})")
        yield call(give_back, w, i)
        return False
    if parked and "fit() does not look whether it is parked" not in w.broken:
        yield call(want, w)
        yield act(_append, f"block({i})", "blocked", i)
        return False
    if w.requests[i].limited and full and "the limit is not looked at" not in w.broken:
        if "a held one is dropped" not in w.broken:
            yield act(_append, f"hold({i})", "held", i)
        return False
    return True


def give_back(w: Waiting, i: int) -> Steps:
    """free_record(), let_next()."""
    yield put(("state", i), "free", f"record {i} is free")
    yield call(uncount, w, i)
    yield call(let_next, w, i)


def uncount(w: Waiting, i: int) -> Steps:
    counted = yield look(lambda m, i: m["counted", i], f"record {i} counts", i)
    if counted and "who has ended is counted still" not in w.broken:
        yield put(("counted", i), 0, "record.counted = 0")
        yield act(lambda m: m.__setitem__("running", max(0, m["running"] - 1)), "--model.running")


def let_next(w: Waiting, i: int) -> Steps:
    if not w.requests[i].limited or "nobody goes on for it" in w.broken:
        return
    best = yield look(lambda m: m["held"][0] if m["held"] and m["running"] < w.most else NOBODY, "release_held()")
    if best != NOBODY:
        yield act(_remove, f"unhold({best})", "held", best)
        yield act(_append, f"offer({best})", "heap", best)


# ---- Worker ----------------------------------------------------------------------------------------------------------


def _ready(w: Waiting, m: Memory) -> bool:
    """Worker::work_ready()."""
    if (m["session"] == "open" and m["head"] < len(m["ring"])) or m["heap"]:
        return True
    for i in m["blocked"]:
        found = _came(w, m, i) if m["state", i] == "queued" else "in vain"
        if found != "not yet" and not (found == "well" and _is_parked(w, m, i) and m["wanted"]):
            return True
    return False


def worker(w: Waiting, me: int, finished: int = NOBODY) -> Steps:
    yield when(lambda m: finished != NOBODY or _ready(w, m), "work_ready()")
    yield call(enter, w)
    if finished != NOBODY:
        yield call(give_back, w, finished)
    yield call(drain, w)
    i = yield call(pick, w, me)
    yield call(leave, w)
    if i == NOBODY:
        yield goto(worker, w, me)
    begun = yield act(lambda m: _begin(w, m, i, me), f"runs {i}")
    end = "failed" if w.requests[i].fails else "done"
    yield act(lambda m: _finish(m, i, begun, end), f"end_request({i})")
    yield act(_end_record, f"end_record({i})", i, end)
    yield goto(worker, w, me, i)


def _begin(w: Waiting, m: Memory, i: int, me: int) -> bool:
    """claim_request(), and what the kernel finds."""
    if m["line", i] != "none":
        if "a cancelled one is run" in w.broken:
            raise BrokenError(f"{i} runs, and has ended as {m['line', i]}")
        return False  # its client was first
    if i in m["ran"] and not w.idempotent:
        raise BrokenError(f"{i} runs twice")
    request = w.requests[i]
    if request.of != NOBODY and m["line", request.of] != "done":
        raise BrokenError(f"{i} runs, and {request.of}, whose output it takes, is {m['line', request.of]}")
    if request.limited and m["version"] == "gone":
        raise BrokenError(f"{i} runs, and no worker holds its version")
    m["ran"] += (i,)
    if request.limited:
        m["inside"] |= {i}
        if len(m["inside"]) > w.most:
            raise BrokenError(f"{sorted(m['inside'])} run at once, at most {w.most} may")
    return True


def _finish(m: Memory, i: int, begun: bool, end: str) -> None:
    m["inside"] -= {i}
    if begun:
        _end(m, i, end)


def _end_record(m: Memory, i: int, end: str) -> None:
    if m["state", i] in ("queued", "running"):
        m["state", i] = end


# ---- the host --------------------------------------------------------------------------------------------------------


def bury(w: Waiting) -> Steps:
    """Sweeper::bury_worker()."""
    yield when(lambda m: bool(m["dead"]), "hears of a death")
    dead = yield act(next_dead, "whose")
    yield call(enter, w)
    for i in range(len(w.requests)):
        state, runner, wanted = yield look(
            lambda m, i: (m["state", i], m["worker", i], m["line", i] == "none" and m["session"] == "open"),
            f"record {i}",
            i,
        )
        if runner != dead or state in ("free", "queued"):
            continue
        yield act(lambda m, i: m.__setitem__("inside", m["inside"] - {i}), "its process is gone", i)
        if state == "running" and w.idempotent and wanted:
            yield put(("worker", i), NOBODY, "record.worker = nobody")  # requeue()
            yield put(("state", i), "queued", f"record {i} is queued")
            yield act(_append, f"offer({i})", "heap", i)
            if "requeue() leaves it counted" not in w.broken:
                yield call(uncount, w, i)
            yield call(let_next, w, i)
            continue
        yield act(_end_record, f"end_record({i})", i, "failed")
        yield act(_end, f"end_running({i})", i, "failed")
        yield call(give_back, w, i)
    yield call(leave, w)
    yield goto(bury, w)


def park(w: Waiting, times: int) -> Steps:
    """Parking._park(): the version is given up by the workers once nobody runs it."""
    if times == 0:
        return
    yield call(enter, w)
    ready = yield look(lambda m: m["version"] == "ready", "state == ready")
    if ready:
        yield put("version", "parked", "state = parked")
    yield call(leave, w)
    yield goto(park, w, times - 1)


def bring_back(w: Waiting) -> Steps:
    """Parking.bring_back(), for a worker's report: the first one while it is parked."""
    yield when(lambda m: m["told"] and m["version"] == "parked", "is told that the version is wanted")
    if "it comes back for nobody" in w.broken:
        return
    yield call(enter, w)
    yield put("version", "ready", "state = ready")
    yield put("told", False, "its report is answered")
    yield put("wanted", False, "told_wanted_.reset(version_line)")
    yield call(leave, w)
    yield goto(bring_back, w)


def close(w: Waiting) -> Steps:
    """Pool.close_session(): the client has left."""
    yield call(enter, w)
    yield put("session", "closing", "line.state = closing")
    for i in range(len(w.requests)):
        waits = yield look(lambda m, i: m["state", i] == "queued", f"record {i}", i)
        if waits:
            yield put(("state", i), "cancelled", f"end_record({i})")
            yield act(_end, f"end_queued({i})", i, "cancelled")
    for name in ("heap", "blocked", "held"):  # prune()
        for i in (yield look(lambda m, name: m[name], name, name)):
            ended = yield look(lambda m, i: m["state", i] != "queued", f"record {i}", i)
            if ended:
                yield act(_remove, f"leaves {name}: {i}", name, i)
                yield put(("state", i), "free", f"free_record({i})")
    while "the ring is not refused" not in w.broken:  # refuse_ring()
        i, head = yield look(lambda m: (_peek(m), m["head"]), "ring.peek()")
        if i == NOBODY:
            break
        yield act(_end, f"end_request({i})", i, "cancelled")
        yield put("head", head + 1, f"line.head = {head + 1}")
    yield call(leave, w)
    yield when(lambda m: all(m["state", i] == "free" for i in range(len(w.requests))), "session_in_flight() == 0")


# ---- the client, and the whole ---------------------------------------------------------------------------------------


def client(w: Waiting, sent: int = 0) -> Steps:
    if sent == len(w.requests):
        return
    gone = yield act(_publish, f"publishes {sent}", sent)
    if not gone:
        yield goto(client, w, sent + 1)


def _publish(m: Memory, i: int) -> bool:
    if m["session"] != "open":
        return True
    m["ring"] += (i,)
    return False


def cancel(w: Waiting, i: int) -> Steps:
    yield when(lambda m: i in m["ring"], "has submitted it")
    yield act(lambda m: None if i in m["ran"] else _end(m, i, "cancelled"), f"cancel({i})")


def model(w: Waiting, **options: Any) -> Model:
    processes = [Process(f"worker{i}", worker, (w, i), daemon=True, mortal=i < w.deaths) for i in range(w.workers)]
    processes.append(Process("client", client, (w,)))
    processes += [Process(f"cancels{i}", cancel, (w, i)) for i in w.cancelled]
    if w.deaths:
        processes.append(Process("burier", bury, (w,), daemon=True))
    if w.parks:
        processes.append(Process("parks", park, (w, w.parks)))
    if w.parks or w.parked:
        processes.append(Process("brings back", bring_back, (w,), daemon=True))
    if w.leaves:
        processes.append(Process("closes", close, (w,)))

    def on_death(memory: Memory, at: int) -> None:
        memory["dead"] += (at,)

    def final(m: Memory) -> str | None:
        open_ones = [i for i in m["ring"] if m["line", i] == "none"]
        if open_ones:
            return f"{open_ones} never end"
        busy = [i for i in range(len(w.requests)) if m["state", i] != "free" and m["state", i] not in ENDS]
        if busy or m["held"] or m["running"] > sum(m["state", i] in ENDS for i in range(len(w.requests))):
            return f"records {busy} are never free again, held are {m['held']}, running {m['running']}"
        return None

    return Model(processes, w.memory(), order="sc", deaths=w.deaths, on_death=on_death, final=final, **options)
