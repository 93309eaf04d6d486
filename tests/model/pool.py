"""The worker loop of core/host/worker.cpp and what of core/host/pool.cpp concerns sleeping, as a model.

Theory of operation: requests are numbers, in the order in which each client publishes them. A `long` request runs until all
others have ended, so that a worker that ought to be awake and is not shows up as a request that never ends. Sleeps have no time
limit here and there is no sweeper unless a model adds one: the protocol must do without. What the role protects is read in one
step, because nobody can change it meanwhile; each change of it is a step, because ring_ready() and queued() look from outside.

`broken` names one line that is wrong. Those marked "first version" are how the core was when these models were written.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from explore import ALL, Memory, Model, Process, Steps, act, add, call, cas, choose, fence, goto, load, lock, look, store, swap, unlock
from explore import wake as futex_wake
from explore import sleep as futex_wait
from explore import when


@dataclass(frozen=True)
class Pool:
    """What the processes of one model know; hashable, so that it can be an argument of theirs."""

    workers: int
    clients: int
    requests: tuple[tuple[int, ...], ...]  # of each client
    long: frozenset[int] = frozenset()  # run until all short ones have ended, and are known to be long
    slow: frozenset[int] = frozenset()  # thought to be short, may run until all others have ended
    cancelled: frozenset[int] = frozenset()  # ended by their client before anybody picks them
    victim: int = -1  # a worker that may be killed, between two requests or in one; it runs idempotent requests
    limit: int = 0  # of a client's requests in flight; 0: none
    news: bool = False  # somebody posts
    fine: bool = False  # each load of work_ready() and stir() is a step; else one step for all, and the spinning is left out
    broken: frozenset[str] = frozenset()

    @property
    def everything(self) -> tuple[int, ...]:
        return tuple(request for requests in self.requests for request in requests)

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"role": 0, "leader": 0, "queue": (), "ended": frozenset(), "corpse": None}
        for client in range(self.clients):
            for name in ("published", "head", "in_flight", "need_wake", "doorbell"):
                memory[name, client] = 0
        for worker in range(self.workers):
            memory["state", worker] = "idle"
            for name in ("wake", "sleeping", "news", "inbox", "applied", "run_started"):
                memory[name, worker] = 0
        return memory

    def client_of(self, request: int) -> int:
        return next(client for client, requests in enumerate(self.requests) if request in requests)

    def all_ended(self, memory: Memory) -> str | None:
        missing = set(self.everything) - memory["ended"]
        return f"requests {sorted(missing)} never end, and nobody is awake who could run them" if missing else None

    def short_ended(self, memory: Memory) -> bool:
        return set(self.everything) - self.long - self.slow <= set(memory["ended"])


# ---- ClientSession ---------------------------------------------------------------------------------------------------


def client(pool: Pool, me: int, sent: int = 0) -> Steps:
    """submit() of each request, without waiting for the one before."""
    while sent < len(pool.requests[me]):
        sent += 1
        yield store(("published", me), sent, release=True)  # producer_.push(&entry), see test_ring.py
        yield call(ring_doorbell, pool, me)


def ring_doorbell(pool: Pool, me: int) -> Steps:
    if "no fence in ring_doorbell()" not in pool.broken:
        yield fence()  # atomic_thread_fence(seq_cst);
    needed = yield load(("need_wake", me))  # if (header->need_wake.load(relaxed) == 0) return;
    if needed == 0:
        return
    if not pool.broken & {"need_wake is cleared by the worker", "need_wake is never cleared"}:  # first version: worker
        needed = yield swap(("need_wake", me), 0, bool)  # if (header->need_wake.exchange(0, seq_cst) == 0) return;
        if not needed:
            return
    if "doorbell is not bumped" not in pool.broken:
        yield add(("doorbell", me), 1)  # header->doorbell.fetch_add(1, seq_cst);
    count = 1 if "doorbell wakes one" in pool.broken else ALL  # first version: 1
    yield futex_wake(("doorbell", me), count)  # futex_wake(&header->doorbell, INT_MAX);


# ---- Pool ------------------------------------------------------------------------------------------------------------


def work_ready(pool: Pool) -> Steps:
    """Worker::work_ready(): Pool::ring_ready(), then Pool::queued(); under no lock."""
    if not pool.fine:
        ready = yield look(
            lambda m: bool(m["queue"]) or any(m["published", at] > m["head", at] for at in range(pool.clients)),
            "work_ready()",
        )
        return ready
    for at in range(pool.clients):
        head = yield load(("head", at))  # head = atomic_load(&line.head);
        ready = yield load(("published", at), lambda published, head=head: published > head)  # ring.peek() != nullptr
        if ready and pool.limit:
            ready = yield load(("in_flight", at), lambda count: count < pool.limit)  # line.in_flight < line.limit
        if ready:
            return True
    queued = yield load("queue", bool)  # atomic_load(&header.heap_size) > 0
    return queued


def wake_worker(pool: Pool, worker: int) -> Steps:
    if "sleeping is read before wake is bumped" in pool.broken:
        sleeping = yield load(("sleeping", worker))
        yield add(("wake", worker), 1)
    else:
        if "wake is not bumped" not in pool.broken:
            yield add(("wake", worker), 1)  # line.wake.fetch_add(1, seq_cst);
        sleeping = yield load(("sleeping", worker))  # if (line.sleeping.load(seq_cst) != 0)
    if sleeping:
        yield futex_wake(("wake", worker), 1)  # futex_wake(&line.wake, 1);


def promote(pool: Pool, self: int) -> Steps:
    for worker in range(pool.workers):
        if worker == self:  # if (i == self) continue;
            continue
        idle = yield load(("state", worker), lambda state: state == "idle")  # workers[i].state.load(seq_cst) != idle
        if idle:
            yield call(wake_worker, pool, worker)  # wake_worker(i); return true;
            return
    if "promote() passes over a sleeping leader" in pool.broken:  # first version
        return
    leader = yield load("leader")  # leader = header.leader.load(seq_cst);
    if leader not in (0, self + 1):
        yield call(wake_worker, pool, leader - 1)


def drain(pool: Pool) -> Steps:
    for at in range(pool.clients):
        while True:
            # while (line.in_flight < line.limit) { message = ring.peek(); if (message == nullptr) break;
            entry = yield act(lambda m, at=at: _next_entry(pool, m, at), f"reads ring {at}")
            if entry is None:
                break
            if pool.limit:
                yield act(lambda m, at=at: _bump(m, ("in_flight", at), 1), "++line.in_flight")  # admit()
            yield act(lambda m, r=entry: m.__setitem__("queue", (*m["queue"], r)), f"heap_push({entry})")  # admit()
            yield act(lambda m, at=at: _bump(m, ("head", at), 1), "line.head = ring.position()")  # ring.retire(); line.head =


def _next_entry(pool: Pool, memory: Memory, at: int) -> int | None:
    head = memory["head", at]
    if memory["published", at] == head or (pool.limit and memory["in_flight", at] >= pool.limit):
        return None
    return pool.requests[at][head]


def _bump(memory: Memory, name: Hashable, amount: int) -> None:
    memory[name] += amount


def _pop(memory: Memory) -> int | None:
    top, memory["queue"] = (memory["queue"][0], memory["queue"][1:]) if memory["queue"] else (None, ())
    return top


def _end(memory: Memory, request: int) -> None:
    memory["ended"] |= {request}


def give_back(pool: Pool, at: int) -> Steps:
    if pool.limit:
        yield act(lambda m: _bump(m, ("in_flight", at), -1), "--line.in_flight")


def pick(pool: Pool) -> Steps:
    """Returns (request or None, whether a record was given back on the way)."""
    given = False
    while True:
        request = yield act(_pop, "heap_pop()")  # index = heap_pop();
        if request not in pool.cancelled:
            return request, given
        yield act(lambda m, r=request: _end(m, r), f"finds request {request} cancelled")  # has_ended(...): end_queued();
        yield call(give_back, pool, pool.client_of(request))  # give_back({&index, 1}); continue;
        given = True


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
            yield call(apply_inbox, pool, me)
    if finished is None:  # take(): if (finished_.empty() && !work_ready()) return nobody;
        ready = yield call(work_ready, pool)
        if not ready:
            yield goto(wait, pool, me)
    yield goto(take, pool, me, leading, finished)


def apply_inbox(pool: Pool, me: int) -> Steps:
    yield swap(("news", me), 0)  # while (news_.exchange(false, acquire)) inbox.swap(inbox_), news(*this)
    yield act(lambda m: m.__setitem__(("applied", me), m["inbox", me]), "applies the inbox")


def post(pool: Pool, worker: int) -> Steps:
    """Worker::post() from another thread."""
    yield act(lambda m: _bump(m, ("inbox", worker), 1), "inbox_.push_back(news)")  # under inbox_mutex_
    yield swap(("news", worker), 1)  # news_.store(true, seq_cst);
    yield call(wake_worker, pool, worker)  # pool_->wake_worker(index_);


def take(pool: Pool, me: int, leading: bool, finished: int | None) -> Steps:
    """The rest of Worker::take()."""
    yield lock("role")  # pool_->enter(...)
    if finished is not None:
        yield call(give_back, pool, finished)  # pool_->give_back(finished_);
    yield call(drain, pool)  # pool_->drain(live_);
    request, given = yield call(pick, pool)  # record = pool_->pick(index_, maps_);
    more = request is not None  # more = pool_->queued() > 0;
    if more:
        more = yield load("queue", bool)
    if request is not None and given and "what pick() gave back is forgotten" not in pool.broken:  # first version
        more = yield call(work_ready, pool)  # || (gave_back && pool_->ring_ready(live_))
    if request is not None and "a busy worker looks idle" not in pool.broken:  # first version
        yield swap(("state", me), "running")  # line_.state.store(running, seq_cst);
    yield unlock("role")  # pool_->leave();
    if request is None:
        yield goto(wait, pool, me)
    yield goto(hand_on, pool, me, leading, request, more)


def hand_on(pool: Pool, me: int, leading: bool, request: int, more: bool) -> Steps:
    """The end of Worker::take(): does somebody else have to look up?"""
    if leading and (more or request in pool.long):  # if (leading_ && (more || expected > long_run_ns)) {
        if "promoted before resigned" in pool.broken:
            yield call(promote, pool, me)
        if "the leader keeps the lead" not in pool.broken:
            leading = False  # leading_ = false;
            yield cas("leader", me + 1, 0, lambda _: None)  # leader.compare_exchange_strong(me, 0, seq_cst);
            if not pool.broken & {"promoted before resigned", "nobody is promoted"}:
                yield call(promote, pool, me)  # pool_->promote(index_);
    elif more and "nobody is promoted" not in pool.broken:  # } else if (more) {
        yield call(promote, pool, me)  # pool_->promote(index_);
    elif not leading and not pool.broken & {"a busy worker looks idle", "nobody looks for a missing leader"}:
        led = yield load("leader", bool)  # } else if (!leading_ && leader.load(seq_cst) == 0) {
        if not led:
            yield call(promote, pool, me)  # pool_->promote(index_);
    yield goto(execute, pool, me, leading, request)


def execute(pool: Pool, me: int, leading: bool, request: int) -> Steps:
    """Worker::execute(), finish(): end_record(), end_request() (test_request.py), finished_.push_back(index)."""
    if me == pool.victim:
        killed = yield choose(False, True)
        if killed:
            yield goto(die, request)
    if request in pool.long:
        yield when(pool.short_ended, f"runs request {request} until all short ones have ended")
    if request in pool.slow:
        yield store(("run_started", me), 1)  # line_.run_started.store(ending.started, relaxed);
        slow = yield choose(True, False)
        if slow:
            yield when(pool.short_ended, f"runs request {request} until all short ones have ended")
        yield store(("run_started", me), 0)  # line_.run_started.store(0, relaxed);
    yield act(lambda m: _end(m, request), f"ends request {request}")
    yield goto(worker, pool, me, leading, pool.client_of(request))


def wait(pool: Pool, me: int) -> Steps:
    """Worker::wait(), spinning for no time."""
    wake_seen = -1
    if "wake is read late" not in pool.broken:
        wake_seen = yield load(("wake", me))  # wake_seen = line_.wake.load(seq_cst);
    leader = yield load("leader", lambda leader: "me" if leader == me + 1 else leader and "another")
    if leader == 0:  # leader = header.leader.load(seq_cst); if (leader == 0)
        won = yield cas("leader", 0, me + 1, lambda seen: seen[0])  # leader.compare_exchange_strong(leader, index_ + 1);
        leader = "me" if won else "another"
    leading = leader == "me"  # leading_ = leader == 0 || leader == index_ + 1;
    state = "leading" if leading else "idle"
    if "idle is stored relaxed" in pool.broken:
        yield store(("state", me), state)
    else:
        yield swap(("state", me), state)  # line_.state.store(..., seq_cst);
    stirred = yield call(stir, pool, me, wake_seen, leading)
    if stirred:
        yield goto(worker, pool, me, leading)
    if "wake is read late" in pool.broken:
        wake_seen = yield load(("wake", me))
    if leading:
        yield goto(sleep_leading, pool, me, wake_seen)
    if "the leader is not looked at again" not in pool.broken:
        led = yield load("leader", bool)  # header.leader.load(seq_cst) != 0
        if not led:
            yield goto(worker, pool, me)
    yield goto(sleep_following, pool, me, wake_seen)


def stir(pool: Pool, me: int, wake_seen: int, leading: bool) -> Steps:
    """news_.load() || line_.wake.load() != wake_seen || work_ready()"""
    if leading and not pool.fine:
        return False
    stirred = yield call(news_of, pool, me)
    if not stirred and pool.fine and "wake is read late" not in pool.broken:
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
            bell = yield load(("doorbell", at))  # waiters[count++] = {&header->doorbell, header->doorbell.load(seq_cst)};
            waiters.append((("doorbell", at), bell))
        if "need_wake is stored relaxed, no fence" in pool.broken:
            yield store(("need_wake", at), 1)
        elif "need_wake is not stored" not in pool.broken:
            yield swap(("need_wake", at), 1)  # header->need_wake.store(1, seq_cst);
        if "doorbell is read after need_wake" in pool.broken:  # first version, and right there
            bell = yield load(("doorbell", at))
            waiters.append((("doorbell", at), bell))
    if "need_wake is stored relaxed, no fence" not in pool.broken:
        yield fence()  # atomic_thread_fence(seq_cst);
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
    if "need_wake is cleared by the worker" in pool.broken:  # first version
        for at in range(pool.clients):
            yield store(("need_wake", at), 0)  # map->header()->need_wake.store(0, relaxed);
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
    """Not in the C++: kill -9. Deaths inside the role are test_dispatch.py's matter."""
    yield act(lambda m: m.__setitem__("corpse", (request,)), "is killed")


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
    yield call(promote, pool, worker)  # pool_->promote(worker);


def watch_leader(pool: Pool) -> Steps:
    """Sweeper::watch_leader(), once, when the leader may have been running for 1 ms; the sweeper's draining is left out."""
    yield when(lambda m: m["leader"] != 0 and m["run_started", m["leader"] - 1] != 0, "the sweeper looks at a busy leader")
    leader = yield load("leader")  # leader = header.leader.load(seq_cst);
    if leader == 0:
        return
    since = yield load(("run_started", leader - 1))  # since = workers[leader - 1].run_started.load(relaxed);
    if since == 0:
        yield goto(watch_leader, pool)
    won = yield cas("leader", leader, 0, lambda seen: seen[0])  # leader.compare_exchange_strong(leader, 0, seq_cst)
    if won:
        yield call(promote, pool, leader - 1)  # pool_->promote(leader - 1);


def model(pool: Pool, *more: Process, start: str = "", **options: Any) -> Model:
    """`start`: for each worker "L": it leads and is about to sleep; "F": it follows and is about to sleep; "R": it leads
    and has just taken request 1; "B": it has ended a request just now; "-": it is at the head of its loop. Without `start` there is no leader yet."""
    memory = pool.memory()
    processes = [Process(f"worker{i}", worker, (pool, i), daemon=True) for i in range(pool.workers)]
    sent = 0
    for i, at in enumerate(start):
        if at in "LR":
            memory["leader"], memory["state", i] = i + 1, "leading"
            processes[i].body, processes[i].args = sleep_leading, (pool, i, 0)
        if at == "R":
            sent = memory["published", 0] = memory["head", 0] = memory["in_flight", 0] = 1
            if "a busy worker looks idle" not in pool.broken:
                memory["state", i] = "running"
            processes[i].body, processes[i].args = hand_on, (pool, i, True, 1, False)
        if at == "B" and "a busy worker looks idle" not in pool.broken:
            memory["state", i] = "running"
        if at == "F":
            processes[i].body, processes[i].args = sleep_following, (pool, i, 0)
    for i in range(pool.clients):
        processes.append(Process(f"client{i}", client, (pool, i, sent if i == 0 else 0)))
    return Model([*processes, *more], memory, final=pool.all_ended, **options)
