"""The loop of core/host/worker.cpp and what of core/host/sweeper.cpp concerns sleeping, as a model: see pool.py."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from .explore import Model, Process
from .operation import Steps, act, call, cas, choose, goto, load, lock, look, store, swap, unlock, when
from .operation import sleep as futex_wait
from .pool import NOBODY, Pool, bump, client, drain, end, give_back, pick, promote, wake_worker, work_ready

# ---- Worker ----------------------------------------------------------------------------------------------------------


def worker(pool: Pool, me: int, leading: bool = False, finished: int | None = None) -> Steps:
    """One turn of Worker::run(): while (!quit_) { apply_inbox(); take(); wait() or execute(); }

    `finished`: the client whose request ended in the turn before, for give_back().
    """
    if me == pool.victim:
        killed = yield choose(False, True)
        if killed:
            yield goto(die, None)
    if pool.news:
        news = yield load(("news", me))  # if (news_.load(relaxed)) apply_inbox();
        if news:
            yield swap(("news", me), 0)  # while (news_.exchange(false, acquire)) inbox.swap(inbox_), news(*this)
            yield act(lambda m: m.__setitem__(("applied", me), m["inbox", me]), "applies the inbox")
    if finished is None:  # take(): if (finished_.empty() && !work_ready()) return nobody;
        ready = yield call(work_ready, pool)
        if not ready:
            yield goto(wait, pool, me)
    yield goto(take, pool, me, leading, finished)


def post(pool: Pool, worker: int) -> Steps:
    """Worker::post() from another thread."""
    yield act(lambda m: bump(m, ("inbox", worker), 1), "inbox_.push_back(news)")  # under inbox_mutex_
    yield swap(("news", worker), 1)  # news_.store(true, seq_cst);
    yield call(wake_worker, pool, worker)  # pool_->wake_worker(index_);


def take(pool: Pool, me: int, leading: bool, finished: int | None) -> Steps:
    """The rest of Worker::take(), up to pool_->leave()."""
    yield lock("role")  # pool_->enter(...)
    if finished is not None:
        yield call(give_back, pool, finished)  # pool_->give_back(finished_);
    yield call(drain, pool)  # pool_->drain(live_);
    request = yield call(pick, pool)  # record = pool_->pick(index_, maps_);
    more = False
    if request is not None:
        more = yield load("queue", bool)  # more = pool_->queued() > 0;
    yield unlock("role")  # pool_->leave();
    if request is None:
        yield goto(wait, pool, me)
    yield goto(hand_on, pool, me, leading, request, more)


def hand_on(pool: Pool, me: int, leading: bool, request: int, more: bool) -> Steps:
    """The end of Worker::take(): does somebody else have to look up?"""
    if not leading:  # if (!leading_) {
        if "a busy worker looks idle" not in pool.broken:
            yield swap(("state", me), "running")  # line_.state.store(running, seq_cst);
        wanted = more
        if not more and "nobody looks for a missing leader" not in pool.broken:
            wanted = yield load("leader", lambda leader: leader == 0)  # if (more || header.leader.load(seq_cst) == 0)
        if wanted and "nobody is promoted" not in pool.broken:
            yield call(promote, pool, me)  # pool_->promote(index_);
    # else if (more || expected > ...) {
    elif (more or request in pool.long) and "the leader keeps the lead" not in pool.broken:
        if pool.lent != NOBODY and "who resigns looks idle" not in pool.broken:
            yield swap(("state", me), "running")  # line_.state.store(running, seq_cst); matters to a lent worker only
        leading = False  # leading_ = false;
        if "promoted before resigned" in pool.broken:
            yield call(promote, pool, me)
        yield cas("leader", me + 1, 0, lambda _: None)  # leader.compare_exchange_strong(me, 0, seq_cst);
        if not pool.broken & {"promoted before resigned", "nobody is promoted"}:
            yield call(promote, pool, me)  # pool_->promote(index_);
    yield goto(execute, pool, me, leading, request)


def execute(pool: Pool, me: int, leading: bool, request: int) -> Steps:
    """Worker::execute(), finish() (line.py), finished_.push_back(index)."""
    if me == pool.victim:
        killed = yield choose(False, True)
        if killed:
            yield goto(die, request)
    if pool.lent != NOBODY:
        yield store(("busy", me), True)  # line_.record.store(index, relaxed);
    if request in pool.long:
        yield when(pool.short_ended, f"runs request {request} until all short ones have ended")
    if request in pool.slow:
        yield store(("run_started", me), 1)  # line_.run_started.store(ending.started, relaxed);
        slow = yield choose(True, False)
        if slow:
            yield when(pool.short_ended, f"runs request {request} until all short ones have ended")
        yield store(("run_started", me), 0)  # line_.run_started.store(0, relaxed);
    yield act(lambda m: end(m, request), f"ends request {request}")
    if pool.lent != NOBODY:
        yield store(("busy", me), False)  # line_.record.store(nobody, relaxed);
    yield goto(worker, pool, me, leading, pool.client_of(request))


def wait(pool: Pool, me: int) -> Steps:
    """Worker::wait(), spinning for no time."""
    wake_seen = yield load(("wake", me))  # wake_seen = line_.wake.load(seq_cst);
    leading = yield call(take_lead, pool, me)  # leading_ = take_lead();
    state = "leading" if leading else "idle"
    if "idle is stored relaxed" in pool.broken:
        yield store(("state", me), state)
    else:
        yield swap(("state", me), state)  # line_.state.store(..., seq_cst);
    stirred = yield call(stir, pool, me, wake_seen, leading)
    if stirred:
        yield goto(worker, pool, me, leading)
    if leading:  # if (!spin_for(spin_.budget_ns(), stir)) sleep_leading(wake_seen);
        yield goto(sleep_leading, pool, me, wake_seen)
    if "the leader is not looked at again" not in pool.broken:
        led = yield load("leader", bool)  # else if (!stir() && header.leader.load(seq_cst) != 0)
        if not led:
            yield goto(worker, pool, me)
    yield goto(sleep_following, pool, me, wake_seen)


def take_lead(pool: Pool, me: int) -> Steps:
    """Worker::take_lead()."""
    free = (0,) if "a lent worker keeps the lead" in pool.broken else (0, pool.lent + 1)  # nobody's, or a lent worker's
    leader = yield load("leader")  # leader = lead.load(seq_cst);
    while leader in free:
        won, seen = yield cas("leader", leader, me + 1)  # lead.compare_exchange_weak(leader, index_ + 1, seq_cst)
        if won:
            return True
        leader = seen
    return leader == me + 1


def stir(pool: Pool, me: int, wake_seen: int, leading: bool) -> Steps:
    """news_.load() || line_.wake.load() != wake_seen || work_ready()"""
    if leading and not pool.fine:
        return False
    stirred = yield call(news_of, pool, me)
    if not stirred and pool.fine:
        stirred = yield load(("wake", me), lambda now: now != wake_seen)
    if not stirred:
        stirred = yield call(work_ready, pool)
    return stirred


def news_of(pool: Pool, me: int) -> Steps:
    news = False
    if pool.news:
        news = yield load(("news", me), bool)  # news_.load()
    return news


def sleep_leading(pool: Pool, me: int, wake_seen: int) -> Steps:
    yield swap(("sleeping", me), 1)  # line_.sleeping.store(1, seq_cst);
    waiters: list[tuple[Hashable, int]] = [(("wake", me), wake_seen)]
    for at in range(pool.clients):
        if not pool.broken & {"doorbell is read after need_wake", "doorbell is read last"}:
            # waiters[count++] = {&header->doorbell, header->doorbell.load(seq_cst)};
            bell = yield load(("doorbell", at))
            waiters.append((("doorbell", at), bell))
        if "need_wake is stored relaxed" in pool.broken:
            yield store(("need_wake", at), 1)
        elif "need_wake is not stored" not in pool.broken:
            yield swap(("need_wake", at), 1)  # header->need_wake.exchange(1, acq_rel);
        if "doorbell is read after need_wake" in pool.broken:
            bell = yield load(("doorbell", at))
            waiters.append((("doorbell", at), bell))
    ready = False
    if "the rings are not looked at again" not in pool.broken:
        ready = yield call(work_ready, pool)  # if (!work_ready() && !news_.load(seq_cst)) {
    if not ready:
        ready = yield call(news_of, pool, me)
    if not ready:
        if "doorbell is read last" in pool.broken:
            for at in range(pool.clients):
                bell = yield load(("doorbell", at))
                waiters.append((("doorbell", at), bell))
        yield futex_wait(*waiters)  # futex_wait_any(waiters, count, until)
    yield store(("sleeping", me), 0)  # line_.sleeping.store(0, relaxed);
    if "need_wake is cleared by the worker" in pool.broken:
        for at in range(pool.clients):
            yield store(("need_wake", at), 0)
    yield goto(worker, pool, me, True)


def sleep_following(pool: Pool, me: int, wake_seen: int) -> Steps:
    if "sleeping is not stored" not in pool.broken:
        yield swap(("sleeping", me), 1)  # line_.sleeping.store(1, seq_cst);
    differs = yield load(("wake", me), lambda now: now != wake_seen)  # line_.wake.load(seq_cst) == wake_seen
    if not differs:
        differs = yield call(news_of, pool, me)  # && !news_.load(seq_cst)
    if not differs:
        yield futex_wait((("wake", me), wake_seen))  # futex_wait(&line_.wake, wake_seen, ...);
    yield store(("sleeping", me), 0)  # line_.sleeping.store(0, relaxed);
    yield goto(worker, pool, me)


def die(request: int | None) -> Steps:
    """Not in the C++: kill -9. Deaths inside the role are dispatch.py's matter."""
    yield act(lambda m: m.__setitem__("corpse", (request,)), "is killed")


# ---- Sweeper ---------------------------------------------------------------------------------------------------------


def rouse(pool: Pool) -> Steps:
    # if (queued() == 0 && !ring_ready(live_)) return;
    ready = yield look(pool.ready, "queued() > 0 || ring_ready(live_)")
    if not ready:
        return
    promoted = yield call(promote, pool, NOBODY)  # if (pool_->promote(nobody)) return;
    if promoted or "rouse() passes over a sleeping leader" in pool.broken:
        return
    leader = yield load("leader")  # leader = header.leader.load(seq_cst);
    if leader != 0:
        yield call(wake_worker, pool, leader - 1)  # pool_->wake_worker(leader - 1);


def bury_worker(pool: Pool, worker: int) -> Steps:
    """Sweeper::bury_worker(), once the worker's process has ended."""
    yield when(lambda m: m["corpse"] is not None, "the host hears of the death")
    yield lock("role")  # enter();
    request = yield look(lambda m: m["corpse"][0], "what it ran")
    if request is not None:
        yield act(lambda m: m.__setitem__("queue", (*m["queue"], request)), f"requeue({request})")
    yield swap(("state", worker), "absent")  # line.state.store(absent, seq_cst);
    yield store(("run_started", worker), 0)  # line.run_started.store(0, relaxed);
    yield store(("sleeping", worker), 0)  # line.sleeping.store(0, relaxed);
    yield cas("leader", worker + 1, 0, lambda _: None)  # leader.compare_exchange_strong(leader, 0, seq_cst);
    yield unlock("role")  # pool_->leave();
    if "nobody leads after a death" not in pool.broken:
        yield call(promote, pool, worker)  # pool_->promote(worker);
    if "nobody is roused after a death" not in pool.broken:
        yield call(rouse, pool)  # rouse();


def watch_leader(pool: Pool) -> Steps:
    """Sweeper::watch_leader(), once, at a moment when the leader may have been running for 1 ms."""
    yield when(lambda m: m["leader"] != 0 and m["run_started", m["leader"] - 1] != 0, "looks at a busy leader")
    leader = yield load("leader")  # leader = header.leader.load(seq_cst);
    if leader == 0:
        return
    sleeping = yield load(("sleeping", leader - 1), bool)  # workers[leader - 1].sleeping.load(relaxed) != 0
    since = yield load(("run_started", leader - 1))  # since = workers[leader - 1].run_started.load(relaxed);
    if sleeping or since == 0:
        yield goto(watch_leader, pool)
    won = yield cas("leader", leader, 0, lambda seen: seen[0])  # leader.compare_exchange_strong(leader, 0, seq_cst)
    if won:
        yield call(promote, pool, leader - 1)  # pool_->promote(leader - 1);


def tick(pool: Pool) -> Steps:
    """Sweeper::watch_leader() again and again, where it comes to rouse()."""
    yield when(lambda m: pool.ready(m) and (m["leader"] == 0 or m["sleeping", m["leader"] - 1] == 1), "ticks")
    yield call(rouse, pool)
    yield goto(tick, pool)


# ---- the whole -------------------------------------------------------------------------------------------------------


def model(pool: Pool, *more: Process, start: str = "", **options: Any) -> Model:
    """`start`, a letter for each worker: L: it leads and is about to sleep; F: it follows and is about to sleep; R: it
    leads and has just taken request 1; X: it runs request 2; B: it has ended a request just now; -: it is at the head
    of its loop. Without `start` there is no leader yet.
    """
    memory = pool.memory()
    processes = [Process(f"worker{i}", worker, (pool, i), daemon=True) for i in range(pool.workers)]
    taken = 0
    for i, at in enumerate(start):
        if at in "LR":
            memory["leader"], memory["state", i] = i + 1, "leading"
            processes[i].body, processes[i].args = sleep_leading, (pool, i, 0)
        if at in "BX" and "a busy worker looks idle" not in pool.broken:
            memory["state", i] = "running"
        if at == "F":
            processes[i].body, processes[i].args = sleep_following, (pool, i, 0)
        if at == "R":
            taken = max(taken, 1)
            processes[i].body, processes[i].args = hand_on, (pool, i, True, 1, False)
        if at == "X":
            taken = 2
            processes[i].body, processes[i].args = execute, (pool, i, False, 2)
    memory["published", 0] = memory["head", 0] = memory["in_flight", 0] = taken
    for i in range(pool.clients):
        processes.append(Process(f"client{i}", client, (pool, i, taken if i == 0 else 0)))
    return Model([*processes, *more], memory, final=pool.final, **options)
