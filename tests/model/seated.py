"""The worker's side of seats.py: Pool::pick(), run_claimed(), suspend(), and Worker's loop; and the whole."""

from __future__ import annotations

from typing import Any

from .explore import Model, Process
from .operation import BrokenError, Memory, Steps, act, call, choose, goto, look, unlock, when
from .seats import (
    LIVE,
    NOBODY,
    Seats,
    agent,
    bury,
    cancel,
    end_record,
    end_request,
    enter,
    expire,
    free,
    host,
    is_past,
    offer,
    put,
    tell,
)

Claims = tuple[tuple[int, int], ...]  # (worker, record), the claimer's first


# ---- a worker --------------------------------------------------------------------------------------------------------


def worker(s: Seats, me: int) -> Steps:
    """Worker::run(): take(), execute(), and what it finished goes back at the next take()."""
    yield when(lambda m: _work(s, m, me), "work_ready()")
    yield call(enter, s)
    i = yield call(pick, s, me)
    yield unlock("role")
    if i != NOBODY:
        yield call(execute, s, me, i)
    yield goto(worker, s, me)


def _work(s: Seats, m: Memory, me: int) -> bool:
    held = [i for i in range(s.records) if m["suspended", i] == me and m["state", i][1] not in ("free", "running")]
    mine = any(i not in m["offered"] or m["state", i][1] != "queued" or is_past(m, i) for i in held)
    staged = bool(m["seated"]) and _all_there(s, m, me, m["seated"])
    return bool(m["queue"]) or staged or m["latched", me] != NOBODY or mine


def _all_there(s: Seats, m: Memory, me: int, seated: int) -> bool:
    """group_complete()."""
    at = range(s.workers) if s.group else [me]
    return all(m["slot", seated, w] is not None and m["slot", seated, w][3] == "ready" for w in at)


def pick(s: Seats, me: int) -> Steps:
    """Pool::pick(): returns a record or NOBODY."""
    latched = yield act(lambda m: _take_latched(s, m, me), "take_latched()")
    if latched != NOBODY:
        return latched
    yield call(shed, s, me)
    seated = yield look(lambda m: m["seated"], "seated()")
    if seated:
        found = yield call(pick_decided, s, me, seated)
        if found != NOBODY:
            return found
    found = yield call(pick_default, s, me)
    if found != NOBODY and seated:
        yield act(lambda m: tell(s, m, found, False), f"tell_taken({found})")
    return found


def _take_latched(s: Seats, m: Memory, me: int) -> int:
    i, m["latched", me] = m["latched", me], NOBODY
    if i == NOBODY or m["worker", i] != me:
        return NOBODY
    if m["state", i][1] == "running":
        return int(i)
    if m["state", i][1] not in ("free", *LIVE):
        free(s, m, i)
    return NOBODY


def shed(s: Seats, me: int) -> Steps:
    """Worker::shed(), drop(): what has ended while it was away."""
    for i in range(s.records):
        yield act(lambda m, i: _shed(s, m, me, i), f"sheds {i}", i)


def _shed(s: Seats, m: Memory, me: int, i: int) -> None:
    state = m["state", i][1]
    if m["suspended", i] == me and state not in ("free", "running") and (state != "queued" or is_past(m, i)):
        end_record(m, i, "cancelled")
        free(s, m, i)


def pick_default(s: Seats, me: int) -> Steps:
    while True:
        i = yield act(lambda m: _pop(s, m, me), "the best of the run queue, and of what is suspended here")
        if i == NOBODY:
            return NOBODY
        fits = yield act(lambda m, i: m["suspended", i] == me or _fit(s, m, i), f"fit({i})", i)
        if not fits:
            continue
        yield put(("worker", i), me, "record.worker")
        began = yield act(lambda m, i: _begin(s, m, i, me), f"begin({i})", i)
        if began:
            return i


def _pop(s: Seats, m: Memory, me: int) -> int:
    for i in range(s.records):
        if m["suspended", i] == me and i not in m["offered"] and m["state", i][1] == "queued":
            return i
    if not m["queue"]:
        return NOBODY
    i, *rest = m["queue"]
    m["queue"] = tuple(rest)
    return int(i)


def _fit(s: Seats, m: Memory, i: int) -> bool:
    """It has not ended while it waited."""
    if m["state", i][1] == "queued" and not (
        is_past(m, i) and "fit() does not look at the client's word" not in s.broken
    ):
        return True
    if m["suspended", i] == NOBODY:
        end_record(m, i, "cancelled")
        free(s, m, i)
    return False


def _begin(s: Seats, m: Memory, i: int, me: int) -> bool:
    generation, state = m["state", i]
    if state != "queued":
        return False
    if m["suspended", i] not in (NOBODY, me):
        raise BrokenError(f"worker {me} goes on with {i}, which worker {m['suspended', i]} holds")
    m["state", i] = (generation, "running")
    return True


# ---- what was decided ------------------------------------------------------------------------------------------------


def pick_decided(s: Seats, me: int, seated: int) -> Steps:
    """HostSeat::claim(), then Pool::run_claimed()."""
    claims = yield act(lambda m: _claim(s, m, me, seated), "claims")
    if not claims:
        return NOBODY
    good = yield act(lambda m: _check(s, m, claims, seated), f"checks {claims}")
    if good:  # fit_claimed() of each: they are offered no more
        for w, i in claims:
            fits = yield act(lambda m, w, i: _fit_claimed(s, m, w, i), f"fit_claimed({i})", w, i)
            good = good and fits
        if not good:
            for _, i in claims:
                yield act(lambda m, i: _poison(s, m, i), f"{i} is offered as before", i)
    if good:
        for at, (w, i) in enumerate(claims):
            yield call(begin_claimed, s, w, i, at > 0)
            yield act(lambda m, w: m.__setitem__(("slot", seated, w), None), "commit(complete)", w)
            yield act(lambda m, i: m.__setitem__(("word", i), (m["state", i][0], m["tseq", i], False)), f"word {i}", i)
        first = claims[0][1]
        runs = yield look(lambda m: m["state", first][1] == "running", "what its worker runs")
        return first if runs else NOBODY
    for w, _ in claims:
        yield act(lambda m, w: m.__setitem__(("slot", seated, w), None), "commit(refused)", w)
    return NOBODY


def _claim(s: Seats, m: Memory, me: int, seated: int) -> Claims:
    """The slots' records, this worker's first. Of a group: all are there, or none is touched."""
    at = [me, *(w for w in range(s.workers) if w != me)] if s.group else [me]
    if not _all_there(s, m, me, seated):
        return ()
    for w in at:
        m["slot", seated, w] = (*m["slot", seated, w][:3], "claimed")
    return tuple((w, m["slot", seated, w][0]) for w in at)


def _check(s: Seats, m: Memory, claims: Claims, seated: int) -> bool:
    """check(): a word that is so still, not bound to another worker. Of a group, idle workers too."""
    for w, i in claims:
        _, generation, tseq, _ = m["slot", seated, w]
        word = m["word", i]
        if word is None or (word[0] != generation):
            return False
        if word[1] != tseq:
            return False
        if not word[2]:
            return False
        if m["suspended", i] not in (NOBODY, w) and "bound is not looked at" not in s.broken:
            return False
        busy = any(m["worker", j] == w and m["state", j][1] == "running" for j in range(s.records))
        if s.group and (busy or m["latched", w] != NOBODY):
            return False
    return True


def _fit_claimed(s: Seats, m: Memory, w: int, i: int) -> bool:
    if i not in m["offered"]:
        return False
    if m["suspended", i] != NOBODY:
        if m["state", i][1] != "queued":
            return False
        m["offered"] -= {i}
        return True
    m["offered"] -= {i}
    return _fit(s, m, i)


def _poison(s: Seats, m: Memory, i: int) -> None:
    """put_offered(): as before, which needs no telling."""
    if m["state", i][1] == "queued" and "the poisoned are offered no more" not in s.broken:
        m["offered"] |= {i}


def begin_claimed(s: Seats, w: int, i: int, elsewhere: bool) -> Steps:
    if elsewhere and "latched after it runs" not in s.broken:
        yield put(("latched", w), i, f"latched {i}")
    yield act(lambda m: m.__setitem__(("worker", i), w), "record.worker")
    began = yield act(lambda m: _begin(s, m, i, w), f"begin({i})")
    if elsewhere and "latched after it runs" in s.broken:
        yield put(("latched", w), i, f"latched {i}")
    if not began:
        if elsewhere:
            yield put(("latched", w), NOBODY, "latched nothing")
        yield act(lambda m: free(s, m, i) if m["suspended", i] == NOBODY else None, f"give_back({i})")


# ---- it runs ---------------------------------------------------------------------------------------------------------


def execute(s: Seats, me: int, i: int) -> Steps:
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
    yield act(lambda m: free(s, m, i), f"give_back({i})")  # at the next take()
    yield unlock("role")


def _claim_request(s: Seats, m: Memory, me: int, i: int) -> bool:
    if m["state", i][1] == "running" and m["worker", i] != me:
        raise BrokenError(f"worker {me} runs {i}, which is worker {m['worker', i]}'s")
    if is_past(m, i):
        return False
    if i in m["refused"]:
        raise BrokenError(f"{i} was cancelled before it began, and runs")
    begun = (i, m["state", i][0])
    goes_on = m["suspended", i] == me
    if not goes_on and any(run[0] == i for run in m["runs"]) and not (s.idempotent and begun not in m["runs"]):
        raise BrokenError(f"{i} runs twice")
    if not goes_on:
        m["runs"] += (begun,)
    m["suspended", i] = NOBODY
    m["client", i] = "running"
    return True


def suspend(s: Seats, me: int, i: int) -> Steps:
    """Worker::suspend(), Pool::suspend()."""
    more = yield act(lambda m: _may_leave(s, m), "leaves")
    if not more:
        return False
    yield call(enter, s)
    yield put(("suspended", i), me, "record.suspended")
    queued = yield act(lambda m: queue_again(m, i), "compare_exchange_strong(running, queued)")
    if queued:
        yield act(lambda m: offer(s, m, i), f"offer_to_agent({i})")
    yield unlock("role")
    return True


def _may_leave(s: Seats, m: Memory) -> bool:
    if m["left"] >= s.leaves:
        return False
    m["left"] += 1
    return True


def queue_again(m: Memory, i: int) -> bool:
    generation, state = m["state", i]
    if state != "running":
        return False
    m["state", i] = (generation, "queued")
    return True


def replacement(s: Seats, me: int, number: int) -> Steps:
    yield when(lambda m: m["idle"] >= number, "starts")
    yield goto(worker, s, me)


def model(s: Seats, **options: Any) -> Model:
    workers = [Process(f"worker{w}", worker, (s, w), daemon=True, mortal=w < s.deaths) for w in range(s.workers)]
    again = [Process(f"again{n}", replacement, (s, 0, n), daemon=True) for n in range(1, s.deaths + 1)]
    rest = [Process("host", host, (s,)), Process("sweeper", bury, (s,), daemon=True)]
    rest += [Process(f"agent{a}", agent, (s, a), daemon=True) for a in range(1, s.incarnations + 1)]
    if s.cancels:
        rest.append(Process("client", cancel, (s, 0), daemon=True))
    if s.expires:
        rest.append(Process("deadline", expire, (s,), daemon=True))

    def on_death(m: Memory, at: int) -> None:
        m["dead"] += (at,)

    def final(m: Memory) -> str | None:
        missing = set(range(s.records)) - m["ends"]
        if missing:
            return f"requests {sorted(missing)} never end"
        if any(m["state", i][1] != "free" for i in range(s.records)) or m["queue"] or m["offered"]:
            return "all requests have ended, and some record is not free"
        return None

    return Model([*workers, *again, *rest], s.memory(), "sc", s.deaths, on_death, final=final, **options)
