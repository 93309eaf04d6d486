"""A worker that another pool lends (core/host/lent.cpp): the rest of the pool is in pool.py and worker.py.

Theory of operation: worker 0 is the pool's own, worker 1 is lent. "time" says whether the lender's worker has nothing
to do (may_lend()); `home` changes it at any moment, and it is lent in the end. The lent worker holds the models of the
requests in `held` only; the others are the own worker's. A long request runs until all that can be run without it have
ended. Without a sweeper everything has to be found through promote() and the doorbell, which is what happens while the
lender has time all along; what changes meanwhile the sweeper's next look finds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .explore import Model, Process
from .operation import BrokenError, Memory, Steps, act, call, cas, goto, load, lock, look, store, swap, unlock, when
from .operation import sleep as futex_wait
from .pool import Pool, client, drain, end, promote, wake_worker
from .worker import sleep_leading as own_sleeps_leading

LENT = 1


@dataclass(frozen=True)
class Helped(Pool):
    """held: requests that the lent worker can run. away: the lender's worker is busy at the start."""

    held: frozenset[int] = frozenset()
    away: bool = False
    sweeps: bool = False

    def short_ended(self, memory: Memory) -> bool:
        return self.held - self.long <= set(memory["ended"])


def _idle(memory: Memory) -> bool:
    """Pool::has_idle()."""
    return memory["state", 0] in ("idle", "leading") and not memory["busy", 0]


def _held(pool: Helped, memory: Memory) -> int | None:
    """Pool::best_held()."""
    return next((request for request in memory["queue"] if request in pool.held), None)


def worker(pool: Helped, finished: bool = False) -> Steps:
    """Worker::run() with take_for_others()."""
    yield cas("lends", 1, 0, lambda _: None)  # lender_->pool->take_back(...);
    open_, ready = yield look(lambda m: (m["time"], pool.ready(m)), "may_lend(), work_ready()")
    if not finished and not (open_ and ready):
        yield goto(wait, pool, False)
    yield lock("role")
    yield call(drain, pool)
    request: int | None = None
    taken = busy = False
    if open_ or "it does not look whether there is time" in pool.broken:
        busy = yield look(lambda m: not _idle(m), "!has_idle()")
        if busy:
            taken = yield cas("lends", 0, 1, lambda seen: seen[0])  # lender_->pool->lend(...)
        if taken:
            request = yield act(lambda m: _pick(pool, m), "pick_held()")
            if request is None:
                yield cas("lends", 1, 0, lambda _: None)
    more = yield load("queue", bool)
    yield unlock("role")
    if request is None:
        yield goto(wait, pool, busy and more)
    yield cas("leader", LENT + 1, 0, lambda _: None)  # resign();
    yield swap(("state", LENT), "helping")  # line_.state.store(helping, seq_cst);
    led = yield load("leader", bool)
    if more or not led:
        yield call(promote, pool, LENT)
    yield act(lambda m: end(m, request), f"ends request {request}")
    yield goto(worker, pool, True)


def _pick(pool: Helped, memory: Memory) -> int | None:
    request = memory["queue"][0] if "it takes what it does not hold" in pool.broken and memory["queue"] else None
    request = _held(pool, memory) if request is None else request
    if request is not None:
        if request not in pool.held:
            raise BrokenError(f"request {request} is run by a worker that does not hold its model")
        memory["queue"] = tuple(other for other in memory["queue"] if other != request)
    return request


def wait(pool: Helped, in_vain: bool) -> Steps:
    """Worker::wait_for_others(). in_vain: it has looked at all that waits, and may run nothing of it."""
    wake_seen = yield load(("wake", LENT))
    lent, work, others = yield look(
        lambda m: (m["time"], pool.ready(m), _idle(m)), "may_lend(), work_ready(), has_idle()"
    )
    if lent and work and not others and not in_vain and "it does not look again" not in pool.broken:
        yield goto(worker, pool)
    leader = yield load("leader", lambda leader: 0 if leader == 0 else 1 + (leader == LENT + 1))
    if lent and not work and not others and leader == 0 and "it does not lead" not in pool.broken:
        yield cas("leader", 0, LENT + 1, lambda _: None)
    mine = yield load("leader", lambda leader: leader == LENT + 1)
    leading = lent and not work and mine
    if not leading and "it keeps a lead that it cannot use" not in pool.broken:
        yield cas("leader", LENT + 1, 0, lambda _: None)  # resign();
    state = "resting" if lent and (not work or others) else "barred"
    if "it rests with work that is not for it" in pool.broken:
        state = "resting"
    yield swap(("state", LENT), state)
    if leading:
        yield goto(sleep_leading, pool, wake_seen)
    if state == "resting" and "the leader is not looked at again" not in pool.broken:
        led, idle = yield look(lambda m: (m["leader"] != 0, _idle(m)), "leader.load(seq_cst) == 0 && !has_idle()")
        if not led and not idle and "it does not lead" not in pool.broken:
            yield goto(worker, pool)
    yield goto(sleep_following, pool, wake_seen)


def sleep_leading(pool: Helped, wake_seen: int) -> Steps:
    yield swap(("sleeping", LENT), 1)
    waiters: list[tuple[Hashable, int]] = [(("wake", LENT), wake_seen)]
    for at in range(pool.clients):
        bell = yield load(("doorbell", at))
        waiters.append((("doorbell", at), bell))
        yield swap(("need_wake", at), 1)
    ready = yield look(pool.ready, "work_ready()")
    if not ready:
        yield futex_wait(*waiters)
    yield store(("sleeping", LENT), 0)
    yield goto(worker, pool)


def sleep_following(pool: Helped, wake_seen: int) -> Steps:
    yield swap(("sleeping", LENT), 1)
    differs = yield load(("wake", LENT), lambda now: now != wake_seen)
    if not differs:
        yield futex_wait((("wake", LENT), wake_seen))
    yield store(("sleeping", LENT), 0)
    yield goto(worker, pool)


def home(pool: Helped, changes: int) -> Steps:
    """The lender's worker: busy and idle in turn, idle in the end."""
    for _ in range(changes):
        yield act(lambda m: m.__setitem__("time", not m["time"]), "the lender's worker begins or ends")


def sweep(pool: Helped) -> Steps:
    """Sweeper::tick(): drain() where nobody leads, rouse_lent(), and rouse(); again and again."""
    yield when(lambda m: _looks(pool, m), "ticks")
    yield lock("role")
    unwatched = yield load("leader", lambda leader: leader == 0)
    if unwatched:
        yield call(drain, pool)
    wakes = yield look(lambda m: _rouses(pool, m), "rouse_lent()")
    if wakes:
        yield call(wake_worker, pool, LENT)
    yield unlock("role")
    yield goto(sweep, pool)


def _looks(pool: Helped, memory: Memory) -> bool:
    undrained = memory["leader"] == 0 and any(
        memory["published", at] > memory["head", at] for at in range(pool.clients)
    )
    return undrained or _rouses(pool, memory)


def _rouses(pool: Helped, memory: Memory) -> bool:
    """Sweeper::rouse_lent()."""
    if (
        "the sweeper does not look" in pool.broken
        or _idle(memory)
        or memory["state", LENT] not in ("resting", "barred")
    ):
        return False
    if not memory["sleeping", LENT] or not memory["time"]:
        return False
    return memory["leader"] == 0 if not memory["queue"] else _held(pool, memory) is not None


def model(pool: Helped, changes: int = 0, **options: Any) -> Model:
    """The own worker leads and is about to sleep; the lent one is at the head of its loop."""
    memory = pool.memory()
    memory |= {"leader": 1, ("state", 0): "leading", ("state", LENT): "barred", "time": not pool.away}
    processes = [
        Process("own", own_sleeps_leading, (pool, 0, 0), daemon=True),
        Process("lent", worker, (pool,), daemon=True),
    ]
    processes += [Process(f"client{at}", client, (pool, at)) for at in range(pool.clients)]
    if changes:
        processes.append(Process("home", home, (pool, changes)))
    if pool.sweeps:
        processes.append(Process("sweeper", sweep, (pool,), daemon=True, patient=True))
    return Model(processes, memory, final=pool.final, **options)
