"""Who sleeps at a seat, and who wakes him: the agent on the bell of each of its desks (AgentSeat::sleep,
sleep_at_all, HostSeat::flush, AgentLoop::post), and a worker on its desk's bell beside its own
(Worker::sleep_following, sleep_leading, AgentSeat::ring, wake_worker), as models.

Theory of operation: sleeps have no time limit, so whoever sleeps over news is stuck for ever. The host's part is
done under the role, which is a lock here, by one process after the other. A client's doorbell, which a leading
worker sleeps on as well, is pool.py's; here it is the same word and the same exchange. Stores are buffered as on
x86-64. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .explore import Model, Process
from .operation import Memory, Steps, add, call, fence, goto, load, lock, look, sleep, store, swap, unlock, wake, when


@dataclass(frozen=True)
class Rest:
    seats: int = 1  # that the agent sits at
    messages: tuple[int, ...] = (1,)  # what each writer tells, by seat in turn
    lost: bool = False  # the ring is full: only the count of lost ones changes
    news: bool = False  # another thread of the agent's posts
    # the worker's side
    leads: bool = False
    staged: int = 1
    latched: bool = False  # another worker carries out a group
    called: bool = False  # a client rings the doorbell
    posted: bool = False  # the host has news for it
    broken: frozenset[str] = frozenset()


# ---- the host tells, the agent sleeps --------------------------------------------------------------------------------


def tell(r: Rest, writer: int) -> Steps:
    for number in range(r.messages[writer]):
        seat = (writer + number) % r.seats
        yield lock("role")
        news = ("overflow", seat) if r.lost else ("head", seat)
        count = yield load(news)
        if "asleep is looked at before the message" in r.broken:
            asleep = yield load(("asleep", seat))
            yield store(news, count + 1, release=True)
        else:
            yield store(news, count + 1, release=True)  # push(): slot.sequence.store(head + 1, release), or overflow
            if "flush() has no fence" not in r.broken:
                yield fence()  # atomic_thread_fence(seq_cst)
            asleep = yield load(("asleep", seat))
        if asleep:  # if (asleep.load(relaxed) == 0 || asleep.exchange(0, acq_rel) == 0) return;
            asleep = yield swap(("asleep", seat), 0, bool)
        if asleep:
            if "the bell is not changed" not in r.broken:
                yield add(("bell", seat), 1)
            yield wake(("bell", seat), 1)
        yield unlock("role")


def post(r: Rest) -> Steps:
    """AgentLoop::post()."""
    yield swap("news", 1)  # news_.store(true, seq_cst)
    yield add(("bell", 0), 1)  # wake()
    yield wake(("bell", 0), 1)


def agent(r: Rest, polled: tuple[int, ...], seen: tuple[int, ...], applied: bool = False) -> Steps:
    """AgentLoop::run() and Rounds::run(), with no patience to spin."""
    applied = yield call(apply_inbox, r, applied)
    for seat in range(r.seats):  # step(): poll() until there is none, then lost()
        heads = yield load(("head", seat))
        polled = (*polled[:seat], heads, *polled[seat + 1 :])
        overflow = yield load(("overflow", seat))
        seen = (*seen[:seat], overflow, *seen[seat + 1 :])
    if sum(polled) + sum(seen) == sum(r.messages) and applied == r.news:
        return
    bells = []
    for seat in range(r.seats):  # lie_down()
        late = "the bell is read after the look" in r.broken
        bells.append(0 if late else (yield load(("bell", seat))))  # bell.load(seq_cst)
        if "it does not say that it sleeps" not in r.broken:
            yield store(("asleep", seat), 1)
        if "lie_down() has no fence" not in r.broken:
            yield fence()
    news = yield call(has_news, r, polled, seen)
    if "the bell is read after the look" in r.broken:
        bells = []
        for seat in range(r.seats):
            bells.append((yield load(("bell", seat))))
    if not news:  # doze(), or futex_wait_any()
        yield sleep(*((("bell", seat), bells[seat]) for seat in range(r.seats)))
    for seat in range(r.seats):
        yield store(("asleep", seat), 0)  # get_up()
    yield goto(agent, r, polled, seen, applied)


def apply_inbox(r: Rest, applied: bool) -> Steps:
    news = (yield load("news")) if r.news else 0  # if (loop->news_.load(relaxed)) apply_inbox();
    if not news:
        return applied
    yield swap("news", 0)
    return True


def has_news(r: Rest, polled: tuple[int, ...], seen: tuple[int, ...]) -> Steps:
    if "nobody looks once more" in r.broken:
        return False
    for seat in range(r.seats):  # has_message() || overflow.load(relaxed) != overflow_
        head = yield load(("head", seat))
        overflow = yield load(("overflow", seat))
        if head != polled[seat] or (
            overflow != seen[seat] and "has_news() does not look for lost ones" not in r.broken
        ):
            return True
    if r.news and "what was posted is not looked for" not in r.broken:
        news = yield load("news")  # news_.load(seq_cst)
        return bool(news)
    return False


def agent_model(r: Rest) -> Model:
    memory: dict[Hashable, Any] = {"role": 0, "news": 0}
    for seat in range(r.seats):
        memory |= {("head", seat): 0, ("overflow", seat): 0, ("bell", seat): 0, ("asleep", seat): 0}
    nothing = (0,) * r.seats
    processes = [Process("agent", agent, (r, nothing, nothing))]
    processes += [Process(f"writer{i}", tell, (r, i)) for i in range(len(r.messages))]
    if r.news:
        processes.append(Process("poster", post, (r,)))
    return Model(processes, memory, "tso")


# ---- the agent decides, a worker sleeps ------------------------------------------------------------------------------


def stage(r: Rest) -> Steps:
    for serial in range(1, r.staged + 1):
        if "asleep is looked at before it is staged" in r.broken:
            asleep = yield load("asleep")
            yield store("staged", serial, release=True)
        else:
            yield store("staged", serial, release=True)  # publish(): slot.word.store(ready, release)
            if "ring() has no fence" not in r.broken:
                yield fence()  # ring(): atomic_thread_fence(seq_cst)
            asleep = yield load("asleep")  # seat_worker(worker).asleep.load(relaxed)
        if not asleep:
            continue
        if "the desk's bell is not changed" not in r.broken:
            yield add("bell", 1)
        yield wake("bell", 1)


def wake_worker(r: Rest, what: str) -> Steps:
    """begin_claimed(elsewhere), Worker::post(): what it is to find, then Pool::wake_worker()."""
    if what == "news":
        yield swap("news", 1)  # news_.store(true, seq_cst)
    else:
        yield store("latched", 1)  # latched.store(index + 1, relaxed)
    if "wake is not changed" not in r.broken:
        yield add("wake", 1)  # line.wake.fetch_add(1, seq_cst)
    sleeping = yield load("sleeping")  # line.sleeping.load(seq_cst)
    if sleeping:
        yield wake("wake", 1)


def client(r: Rest) -> Steps:
    """ClientSession::submit(), ring_doorbell()."""
    yield store("published", 1, release=True)
    needed = yield swap("need_wake", 0, bool)
    if needed:
        yield add("doorbell", 1)
        yield wake("doorbell", 1)


def worker(r: Rest, done: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Steps:
    """Worker::run() and wait(); what it found: decisions, latched, published, news."""
    done = yield look(lambda m: tuple(map(max, done, _found(r, m))), "takes what there is")
    if done == (r.staged, int(r.latched), int(r.called), int(r.posted)):
        return
    wake_seen = yield load("wake")  # line_.wake.load(seq_cst)
    again = yield look(lambda m: _found(r, m) != done, "spins no longer")
    if again:
        yield goto(worker, r, done)
    yield swap("sleeping", 1)  # line_.sleeping.store(1, seq_cst)
    bells: list[tuple[Hashable, int]] = [("wake", wake_seen)]
    if "the desk's bell is read after the look" not in r.broken:
        bells.append(("bell", (yield load("bell"))))
    if "asleep is stored relaxed" in r.broken:
        yield store("asleep", 1)
    elif "the worker does not say that it sleeps" not in r.broken:
        yield swap("asleep", 1)  # set_asleep(index, true): seq_cst
    if r.leads:
        bells.append(("doorbell", (yield load("doorbell"))))
        yield swap("need_wake", 1)
    ready = yield call(looks_again, r, wake_seen, done)
    if "the desk's bell is read after the look" in r.broken:
        bells.append(("bell", (yield load("bell"))))
    if "wake is read last" in r.broken:
        bells[0] = ("wake", (yield load("wake")))
    if "the worker sleeps on its own bell only" in r.broken:
        bells = [pair for pair in bells if pair[0] != "bell"]
    if not ready:
        yield sleep(*bells)  # futex_wait_any()
    yield swap("asleep", 0)  # woken(): set_asleep(index, false)
    yield store("sleeping", 0)
    yield goto(worker, r, done)


def _found(r: Rest, m: Memory) -> tuple[int, int, int, int]:
    return m["staged"], m["latched"], m["published"] if r.leads else 0, m["news"]


def looks_again(r: Rest, wake_seen: int, done: tuple[int, int, int, int]) -> Steps:
    """work_ready() and news_ of who leads; of who follows, wake, news_ and staged()."""
    if not r.leads and "wake is read last" not in r.broken:
        now = yield load("wake")
        if now != wake_seen:
            return True
    news = yield load("news")
    if news != done[3] and "news are not looked at" not in r.broken:
        return True
    staged = yield load("staged")
    if staged != done[0] and "the desk is not looked at" not in r.broken:
        return True
    if not r.leads:
        return False
    published = yield load("published")
    latched = yield load("latched")
    return published != done[2] or latched != done[1]


def worker_model(r: Rest) -> Model:
    names = ("wake", "sleeping", "bell", "asleep", "staged", "latched", "news", "published", "need_wake", "doorbell")
    processes = [Process("worker", worker, (r,)), Process("agent", stage, (r,))]
    if r.latched:
        processes.append(Process("other", wake_worker, (r, "latched")))
    if r.posted:
        processes.append(Process("host", wake_worker, (r, "news")))
    if r.called:
        processes.append(Process("client", client, (r,)))
    return Model(processes, dict.fromkeys(names, 0), "tso")


# ---- a desk that is full of what was taken back ----------------------------------------------------------------------


def crowd(r: Rest) -> Steps:
    """An agent whose decisions for a worker were all taken back before it looked, and that has another one.

    The worker says only once that it has nothing to do, so nobody tells the agent that there is room again.
    """
    taken = yield load("next")
    if taken:
        return  # there is room: it stages
    bell = yield load(("bell", 0))
    yield store(("asleep", 0), 1)
    yield fence()
    # rest(): until now + crowded_nap_ns, if a worker was passed over
    yield sleep((("bell", 0), bell), timed="a crowded desk is slept over" not in r.broken)
    yield store(("asleep", 0), 0)
    yield goto(crowd, r)


def settle_all(r: Rest) -> Steps:
    """The worker passes by what was taken back, and finds nothing: told already, so nothing is said."""
    yield when(lambda m: not m["next"], "was rung")
    yield store("next", 1, release=True)


def crowd_model(r: Rest) -> Model:
    memory: dict[Hashable, Any] = {"next": 0, ("bell", 0): 0, ("asleep", 0): 0}
    return Model([Process("agent", crowd, (r,)), Process("worker", settle_all, (r,))], memory, "tso")
