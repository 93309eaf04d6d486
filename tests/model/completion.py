"""Waiting for the end of a request: core/host/client.cpp (submit, nap, wait, cancel), session.cpp (end_request),
notifier.cpp.

A completion word is (generation, state) here. What end_request() and cancel() do to each other is line.py's matter;
here they only have to wake whoever sleeps. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from .explore import Model, Process
from .operation import (
    ALL,
    BrokenError,
    Memory,
    Steps,
    act,
    call,
    cas,
    choose,
    goto,
    load,
    lock,
    store,
    swap,
    unlock,
    when,
)
from .operation import add as fetch_add
from .operation import sleep as futex_wait
from .operation import wake as futex_wake

Broken = frozenset[str]
Word = tuple[int, str]
TERMINAL = ("done", "cancelled", "expired")


def has_ended(word: Word, generation: int) -> bool:
    return word[0] == generation and word[1] in TERMINAL


def memory() -> dict[Hashable, Any]:
    line: dict[Hashable, Any] = {"word": (0, "free"), "waiting": 0, "submitted": 0}  # one completion line
    notifier: dict[Hashable, Any] = {"bell": 0, "stopping": 0, "mutex": 0, "arriving": 0, "called": 0}
    return {**line, **notifier}


# ---- ClientSession ---------------------------------------------------------------------------------------------------


def submit(broken: Broken, generation: int) -> Steps:
    yield store("submitted", generation, release=True)  # producer_.push(&entry)


def wait(broken: Broken, generation: int, timed: bool = False) -> Steps:
    """ClientSession::wait(), spinning for no time. `timed`: with an until_ns that may pass at any moment."""
    done = yield load("word", lambda word: has_ended(word, generation))  # done = ended(slot);
    if done:
        return
    if timed:
        late = yield choose(False, True)  # if (until_ns != 0 && now >= until_ns) return false;
        if late:
            return
    yield call(nap, broken, generation, timed)
    yield goto(wait, broken, generation, timed)


def nap(broken: Broken, generation: int, timed: bool) -> Steps:
    if "waiting is not stored" not in broken:
        yield fetch_add("waiting", 1)  # waiting.fetch_add(1, seq_cst);
    word = yield load("word")  # word = slot.line->word.load(seq_cst);
    if not has_ended(word, generation) or "the word is not looked at" in broken:
        yield futex_wait(("word", word), timed=timed)  # futex_wait(low_word(&slot.line->word), word, until_ns);
    if "waiting is cleared by whoever sees the end" in broken:  # if (ended(slot)) waiting.store(0, relaxed);
        ended = yield load("word", lambda now: has_ended(now, generation))
        if ended:
            yield store("waiting", 0)
    if "waiting is cleared by whoever wakes up" in broken:
        yield store("waiting", 0)
    elif "waiting is not stored" not in broken:
        yield fetch_add("waiting", -1)  # waiting.fetch_sub(1, relaxed);


def cancel(broken: Broken, generation: int) -> Steps:
    """ClientSession::cancel(slot, State::cancelled, ...) from another thread."""
    word = yield load("word")  # seen = slot.line->word.load(acquire);
    while not has_ended(word, generation):
        if word[0] == generation:  # if (running && to == State::cancelled) return false;
            return
        won, word = yield cas("word", word, (generation, "cancelled"))  # compare_exchange_strong(seen, ...)
        if won:
            if "cancel() wakes nobody" not in broken:
                yield call(wake_waiters, broken)  # if (line->waiting.load(seq_cst) != 0) futex_wake(...)
            return


# ---- session.cpp -----------------------------------------------------------------------------------------------------


def wake_waiters(broken: Broken) -> Steps:
    waiting = yield load("waiting")  # if (line.waiting.load(seq_cst) != 0)
    if waiting:
        yield futex_wake("word", 1 if "one waiter is woken" in broken else ALL)  # futex_wake(..., INT_MAX);


def end_request(broken: Broken, generation: int, claimed: bool) -> Steps:
    """claim_request() and end_request(), as a worker calls them."""
    yield when(lambda m: bool(m["submitted"] >= generation), "takes the request")
    word = yield load("word")  # seen = line.word.load(acquire);
    while claimed and not has_ended(word, generation):  # claim_request()
        won, word = yield cas("word", word, (generation, "running"))
        if won:
            word = (generation, "running")
            break
    early = 0
    if "waiting is read before the word is changed" in broken:
        early = yield load("waiting")
    while not has_ended(word, generation):
        # line.word.compare_exchange_strong(seen, word, seq_cst)
        won, word = yield cas("word", word, (generation, "done"))
        if won:
            break
    if "waiting is read before the word is changed" not in broken:
        yield call(wake_waiters, broken)
    elif early:
        yield futex_wake("word", ALL)


# ---- Notifier --------------------------------------------------------------------------------------------------------


def notifier_add(broken: Broken) -> Steps:
    """Notifier::add(). The thread runs already."""
    yield lock("mutex")
    stopping = yield load("stopping")  # if (stopping_.load(seq_cst)) { lock.unlock(); done(); return; }
    if not stopping:
        yield act(lambda m: m.__setitem__("arriving", 1), "arriving_.push_back(...)")
    yield unlock("mutex")
    if stopping:
        yield act(_done, "done()")
    else:
        yield call(ring, broken)


def notifier_stop(broken: Broken) -> Steps:
    """Notifier::stop(), up to thread.join()."""
    yield swap("stopping", 1)  # stopping_.store(true, seq_cst);
    yield call(ring, broken)


def ring(broken: Broken) -> Steps:
    if "the bell is not bumped" not in broken:
        yield fetch_add("bell", 1)  # bell_.fetch_add(1, seq_cst);
    yield futex_wake("bell", 1)  # futex_wake(&bell_, 1);


def notifier_loop(broken: Broken, entry: bool = False, counted: bool = False) -> Steps:
    """One turn of Notifier::loop(). `entry`: whether entries_ holds the request; `counted`: in its line's waiting."""
    bell = -1
    if not broken & {"the bell is read after stopping_", "the bell is read after arriving_"}:
        bell = yield load("bell")  # bell = bell_.load(seq_cst);
    stopping = yield load("stopping")  # if (stopping_.load(seq_cst)) break;
    if stopping:
        yield goto(notifier_end, broken, entry, counted)
    if "the bell is read after stopping_" in broken:
        bell = yield load("bell")
    arrived = yield call(take_arriving, broken)
    entry = entry or arrived
    if "the bell is read after arriving_" in broken:
        bell = yield load("bell")
    words: list[tuple[Hashable, Any]] = [("bell", bell)]  # waiters[count++] = {&bell_, bell};
    if entry:
        if not counted:
            yield fetch_add("waiting", 1)  # if (!exchange(counted, true)) line.waiting.fetch_add(1, seq_cst);
            counted = True
        word = yield load("word")  # word = line.word.load(seq_cst);
        ended = yield load("word", lambda seen: has_ended(seen, 1))  # settle(): ClientSession::ended(*entry.slot)
        if ended:
            if "waiting is cleared by whoever sees the end" in broken:
                yield store("waiting", 0)
            yield call(tell, counted)
            entry = counted = False
        else:
            words.append(("word", word))  # waiters[count++] = {low_word(&line.word), word};
    yield futex_wait(*words)  # futex_wait_any(waiters, count, until)
    yield goto(notifier_loop, broken, entry, counted)


def tell(counted: bool) -> Steps:
    if counted:
        yield fetch_add("waiting", -1)  # if (exchange(counted, false)) waiting.fetch_sub(1, relaxed);
    yield act(_done, "entry.done()")


def notifier_end(broken: Broken, entry: bool, counted: bool) -> Steps:
    """Whoever still waits must learn that nobody will tell it later."""
    arrived = False
    if "what arrives late is forgotten" not in broken:
        arrived = yield call(take_arriving, broken)
    if entry or arrived:
        yield call(tell, counted)


def take_arriving(broken: Broken) -> Steps:
    yield lock("mutex")
    arrived = yield act(_take_arriving, "takes what is arriving_")
    yield unlock("mutex")
    return arrived


def _take_arriving(m: Memory) -> bool:
    arrived, m["arriving"] = bool(m["arriving"]), 0
    return arrived


def _done(m: Memory) -> None:
    if m["called"]:
        raise BrokenError("the callback is called twice")
    m["called"] = 1


# ---- threads ---------------------------------------------------------------------------------------------------------


def caller(broken: Broken, generations: int) -> Steps:
    """A thread that calls again and again with the same slot."""
    for generation in range(1, generations + 1):
        yield call(submit, broken, generation)
        yield call(wait, broken, generation)


def other_waiter(broken: Broken, timed: bool) -> Steps:
    """Another thread that waits for the first request too."""
    yield when(lambda m: bool(m["submitted"] >= 1), "is handed the future")
    yield call(wait, broken, 1, timed)


def canceller(broken: Broken) -> Steps:
    yield when(lambda m: bool(m["submitted"] >= 1), "is handed the future")
    yield call(cancel, broken, 1)


def worker(broken: Broken, generations: int) -> Steps:
    for generation in range(1, generations + 1):
        claimed = yield choose(False, True)
        yield call(end_request, broken, generation, claimed)


def busy_worker() -> Steps:
    yield when(lambda m: False, "is busy with something else")


def awaiting(broken: Broken) -> Steps:
    """The thread of an event loop: submits, hands the request to the notifier, waits to be called back, or does not."""
    yield call(submit, broken, 1)
    yield call(notifier_add, broken)
    patient = yield choose(True, False)
    if patient:
        yield when(lambda m: bool(m["called"]), "is called back")
    yield call(notifier_stop, broken)


def closer(broken: Broken) -> Steps:
    """Another thread, which closes the session at any moment."""
    yield call(notifier_stop, broken)


def model(kind: str, broken: Broken, order: str = "tso") -> Model:
    end = Process("worker", worker, (broken, 1))
    one = Process("client", caller, (broken, 1))
    loop = Process("notifier", notifier_loop, (broken,))
    called: Any = lambda m: None if m["called"] else "the callback is never called"  # noqa: E731
    processes = {
        "two generations": [Process("client", caller, (broken, 2)), Process("worker", worker, (broken, 2))],
        "two waiters": [one, Process("other", other_waiter, (broken, False)), end],
        "a waiter that gives up": [one, Process("other", other_waiter, (broken, True)), end],
        "a waiter that gives up, two generations": [
            Process("client", caller, (broken, 2)),
            Process("other", other_waiter, (broken, True)),
            Process("worker", worker, (broken, 2)),
        ],
        "cancelled": [one, Process("other", canceller, (broken,)), Process("worker", busy_worker, daemon=True)],
        "cancelled while it ends": [one, Process("other", canceller, (broken,)), end],
        "notifier": [Process("client", awaiting, (broken,)), loop, end],
        "notifier that is stopped": [
            Process("client", awaiting, (broken,)),
            loop,
            Process("closer", closer, (broken,)),
            end,
        ],
        "notifier and a waiter": [
            Process("client", awaiting, (broken,)),
            loop,
            Process("other", other_waiter, (broken, False)),
            end,
        ],
        "notifier, cancelled": [
            Process("client", awaiting, (broken,)),
            loop,
            Process("other", canceller, (broken,)),
            Process("worker", busy_worker, daemon=True),
        ],
    }[kind]
    return Model(processes, memory(), order, final=called if "notifier" in kind else None)
