"""The worker loop of core/host/worker.cpp, and of pool.cpp, sweeper.cpp and client.cpp what concerns sleeping, as a
model.

Theory of operation: requests are numbers, in the order in which each client publishes them. A `long` request runs
until all short ones have ended, so that a worker that ought to be awake and is not shows up as a request that never
ends. Sleeps have no time limit here. What the role protects is read in one step, because nobody can change it
meanwhile; each change of it is a step, because ring_ready() and queued() look from outside.

`broken` names lines that are wrong; every name stands where the line is.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .operation import ALL, Memory, Steps, act, add, call, load, look, store, swap
from .operation import wake as futex_wake

NOBODY = -1  # promote(nobody)


@dataclass(frozen=True)
class Pool:
    """What the processes of one model know; hashable, so that it can be an argument of theirs."""

    workers: int
    requests: tuple[tuple[int, ...], ...]  # of each client
    long: frozenset[int] = frozenset()  # run until all short ones have ended, and are known to be long
    slow: frozenset[int] = frozenset()  # thought to be short, may run until all short ones have ended
    cancelled: frozenset[int] = frozenset()  # ended by their client before anybody picks them
    victim: int = NOBODY  # a worker that may be killed, between two requests or in one; what it ran runs again
    limit: int = 0  # of a client's requests in flight; 0: none
    news: bool = False  # somebody posts
    lent: int = NOBODY  # a worker that another pool lends, see lent.py
    fine: bool = False  # each load of work_ready() and stir() is a step; else one step for all, and no leader spins
    broken: frozenset[str] = frozenset()

    @property
    def clients(self) -> int:
        return len(self.requests)

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"role": 0, "leader": 0, "queue": (), "ended": frozenset(), "corpse": None}
        for client in range(self.clients):
            for name in ("published", "head", "in_flight", "need_wake", "doorbell"):
                memory[name, client] = 0
        if self.lent != NOBODY:
            memory |= {"time": True, "lends": 0, ("busy", 0): False}
        for worker in range(self.workers):
            memory["state", worker] = "idle"
            for name in ("wake", "sleeping", "news", "inbox", "applied", "run_started"):
                memory[name, worker] = 0
        return memory

    def client_of(self, request: int) -> int:
        return next(client for client, requests in enumerate(self.requests) if request in requests)

    def final(self, memory: Memory) -> str | None:
        missing = {request for requests in self.requests for request in requests} - memory["ended"]
        if missing:
            return f"requests {sorted(missing)} never end: whoever could run them sleeps"
        if any(memory["inbox", worker] != memory["applied", worker] for worker in range(self.workers)):
            return "news is never applied: whom it is for sleeps"
        return None

    def short_ended(self, memory: Memory) -> bool:
        everything = {request for requests in self.requests for request in requests}
        return everything - self.long - self.slow <= set(memory["ended"])

    def ready(self, memory: Memory) -> bool:
        """work_ready() in one look."""
        rings = any(next_entry(self, memory, at) is not None for at in range(self.clients))
        return bool(memory["queue"]) or rings


# ---- ClientSession ---------------------------------------------------------------------------------------------------


def client(pool: Pool, me: int, sent: int = 0) -> Steps:
    """submit() of each request, without waiting for the one before."""
    while sent < len(pool.requests[me]):
        sent += 1
        yield store(("published", me), sent, release=True)  # producer_.push(&entry), see test_ring.py
        yield call(ring_doorbell, pool, me)


def ring_doorbell(pool: Pool, me: int) -> Steps:
    if "need_wake is loaded first" in pool.broken:  # if (need_wake.load(relaxed) == 0) return; without a fence
        needed = yield load(("need_wake", me))
        if not needed:
            return
    if "need_wake is cleared by the worker" not in pool.broken:
        needed = yield swap(("need_wake", me), 0, bool)  # if (header->need_wake.exchange(0, acq_rel) == 0) return;
    else:
        needed = yield swap(("need_wake", me), lambda old: old, bool)
    if not needed:
        return
    if "doorbell is not bumped" not in pool.broken:
        yield add(("doorbell", me), 1)  # header->doorbell.fetch_add(1, seq_cst);
    # futex_wake(doorbell, INT_MAX);
    yield futex_wake(("doorbell", me), 1 if "doorbell wakes one" in pool.broken else ALL)


# ---- Pool ------------------------------------------------------------------------------------------------------------


def work_ready(pool: Pool) -> Steps:
    """Worker::work_ready(): Pool::ring_ready(), then Pool::queued(); under no lock."""
    if not pool.fine:
        ready = yield look(pool.ready, "work_ready()")
        return ready
    for at in range(pool.clients):
        head = yield load(("head", at))  # peek_at(line.head)
        ready = yield load(("published", at), lambda published, head: published > head, head)  # ring.peek() == nullptr
        if ready and pool.limit:
            # peek_at(line.in_flight) >= line.limit
            ready = yield load(("in_flight", at), lambda count: count < pool.limit)
        if ready:
            return True
    queued = yield load("queue", bool)  # peek_at(header.heap_size) > 0
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
    lent = NOBODY
    for worker in range(pool.workers):
        if worker == self:  # if (i == self) continue;
            continue
        state = yield load(("state", worker), _may_wake)  # state = workers[i].state.load(seq_cst)
        if state == "resting":
            lent = worker
        if state == "idle":
            yield call(wake_worker, pool, worker)  # wake_worker(i); return true;
            return True
    if lent == NOBODY:
        return False
    leader = yield load("leader")  # if (leader != 0 && leader - 1 != self && !is_lent(leader - 1)) return false;
    if leader not in (0, self + 1, pool.lent + 1):
        return False
    if "a lent worker is not woken" not in pool.broken:
        yield call(wake_worker, pool, lent)  # wake_worker(lent);
    return True


def _may_wake(state: str) -> str:
    return state if state in ("idle", "resting") else ""


def drain(pool: Pool) -> Steps:
    for at in range(pool.clients):
        while True:
            # while (line.in_flight < line.limit) { message = ring.peek(); if (message == nullptr) break;
            entry = yield act(lambda m, at: next_entry(pool, m, at), f"reads ring {at}", at)
            if entry is None:
                break
            if pool.limit:
                yield act(lambda m, at: bump(m, ("in_flight", at), 1), "++line.in_flight", at)  # admit()
            yield act(lambda m, r: m.__setitem__("queue", (*m["queue"], r)), f"heap_push({entry})", entry)  # admit()
            # poke(line.head, ...)
            yield act(lambda m, at: bump(m, ("head", at), 1), "line.head = ring.position() + 1", at)


def next_entry(pool: Pool, memory: Memory, at: int) -> int | None:
    head: int = memory["head", at]
    if memory["published", at] == head or (pool.limit and memory["in_flight", at] >= pool.limit):
        return None
    return pool.requests[at][head]


def bump(memory: Memory, name: Hashable, amount: int) -> None:
    memory[name] += amount


def _pop(memory: Memory) -> int | None:
    top, memory["queue"] = (memory["queue"][0], memory["queue"][1:]) if memory["queue"] else (None, ())
    return top


def end(memory: Memory, request: int) -> None:
    memory["ended"] |= {request}


def give_back(pool: Pool, at: int) -> Steps:
    if pool.limit:
        yield act(lambda m: bump(m, ("in_flight", at), -1), "--line.in_flight")


def pick(pool: Pool) -> Steps:
    """Returns a request or None."""
    while True:
        request = yield act(_pop, "heap_pop()")  # index = heap_pop();
        if request not in pool.cancelled:
            return request
        yield act(end, f"finds request {request} cancelled", request)  # is_past(...): end_queued();
        yield call(give_back, pool, pool.client_of(request))  # give_back({&index, 1}); continue;
