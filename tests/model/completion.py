"""Waiting for the end of a request: core/host/client.cpp (submit, wait, cancel), session.cpp (end_request) and notifier.cpp.

A completion word is (generation, state) here. What end_request() and cancel() do to each other is test_request.py's matter; here
they only have to wake whoever sleeps. `broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from explore import ALL, Process, Steps, act, call, cas, choose, goto, load, lock, store, swap, unlock, when
from explore import add as fetch_add
from explore import sleep as futex_wait
from explore import wake as futex_wake

Broken = frozenset[str]
Word = tuple[int, str]
TERMINAL = ("done", "cancelled", "expired")


def has_ended(word: Word, generation: int) -> bool:
    return word[0] == generation and word[1] in TERMINAL


def memory() -> dict[Hashable, Any]:
    return {
        "word": (0, "free"), "waiting": 0, "submitted": 0,  # one completion line
        "bell": 0, "stopping": 0, "mutex": 0, "arriving": 0, "called": 0,  # the notifier
    }  # fmt: skip


# ---- ClientSession ---------------------------------------------------------------------------------------------------


def submit(broken: Broken, generation: int) -> Steps:
    if "a waiter that leaves clears waiting" not in broken:  # first version
        waiting = yield load("waiting")  # if (slot.line->waiting.load(relaxed) != 0)
        if waiting:
            yield store("waiting", 0)  # slot.line->waiting.store(0, relaxed);
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
    if "waiting is stored relaxed" in broken:
        yield store("waiting", 1)
    elif "waiting is not stored" not in broken:
        yield swap("waiting", 1)  # waiting.store(1, seq_cst);
    word = yield load("word")  # word = slot.line->word.load(seq_cst);
    if not has_ended(word, generation) or "the word is not looked at again" in broken:
        yield futex_wait(("word", word), timed=timed)  # futex_wait(low_word(&slot.line->word), word, ...);
    if "a waiter that leaves clears waiting" in broken:  # first version
        yield store("waiting", 0)  # waiting.store(0, relaxed);
    yield goto(wait, broken, generation, timed)


def cancel(broken: Broken, generation: int) -> Steps:
    """ClientSession::cancel(slot, State::cancelled, ...) from another thread."""
    word = yield load("word")  # seen = slot.line->word.load(acquire);
    while not has_ended(word, generation):
        if word[0] == generation:  # if (running && to == State::cancelled) return false;
            return
        won, word = yield cas("word", word, (generation, "cancelled"))  # compare_exchange_strong(seen, ...)
        if won:
            if "cancel() wakes nobody" not in broken:  # first version
                yield call(wake_waiters, broken)
            return


# ---- session.cpp -----------------------------------------------------------------------------------------------------


def wake_waiters(broken: Broken) -> Steps:
    waiting = yield load("waiting")  # if (line.waiting.load(seq_cst) != 0)
    if waiting:
        yield futex_wake("word", 1 if "only one waiter is woken" in broken else ALL)  # futex_wake(..., INT_MAX);


def end_request(broken: Broken, generation: int, claimed: bool) -> Steps:
    """claim_request() and end_request(), as a worker calls them."""
    yield when(lambda m: bool(m["submitted"] >= generation), "takes the request")
    word = yield load("word")  # seen = line.word.load(acquire);
    if claimed:
        while not has_ended(word, generation):  # claim_request()
            won, word = yield cas("word", word, (generation, "running"))
            if won:
                word = (generation, "running")
                break
    early = 0
    if "waiting is read before the word is changed" in broken:
        early = yield load("waiting")
    while not has_ended(word, generation):
        won, word = yield cas("word", word, (generation, "done"))  # line.word.compare_exchange_strong(seen, word, seq_cst)
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
    yield act(lambda m: m.__setitem__("arriving", 1), "arriving_.push_back(...)")
    yield unlock("mutex")
    yield call(ring, broken)


def notifier_stop(broken: Broken) -> Steps:
    """Notifier::stop(), up to thread.join()."""
    yield swap("stopping", 1)  # stopping_.store(true, seq_cst);
    yield call(ring, broken)


def ring(broken: Broken) -> Steps:
    if "the bell is not bumped" not in broken:
        yield fetch_add("bell", 1)  # bell_.fetch_add(1, seq_cst);
    yield futex_wake("bell", 1)  # futex_wake(&bell_, 1);


def notifier_loop(broken: Broken, entry: bool = False) -> Steps:
    """One turn of Notifier::loop(). `entry`: whether entries_ holds the request."""
    bell = -1
    late = broken & {"the bell is read after stopping_", "the bell is read after arriving_"}
    if not late:
        bell = yield load("bell")  # bell = bell_.load(seq_cst);
    stopping = yield load("stopping")  # if (stopping_.load(seq_cst)) break;
    if stopping:
        return
    if "the bell is read after stopping_" in broken:  # first version
        bell = yield load("bell")
    yield lock("mutex")
    arrived = yield act(lambda m: _take_arriving(m), "takes what is arriving_")
    yield unlock("mutex")
    if "the bell is read after arriving_" in broken:
        bell = yield load("bell")
    words: list[tuple[Hashable, Any]] = [("bell", bell)]  # waiters[count++] = {&bell_, bell};
    if entry or arrived:
        entry = True
        if "waiting is not stored" not in broken:
            yield swap("waiting", 1)  # line.waiting.store(1, seq_cst);
        word = yield load("word")  # word = line.word.load(seq_cst);
        ended = yield load("word", lambda seen: has_ended(seen, 1))  # settle(): ClientSession::ended(*entry.slot)
        if ended:
            if "a waiter that leaves clears waiting" in broken:  # first version
                yield store("waiting", 0)
            yield act(lambda m: m.__setitem__("called", m["called"] + 1), "entry.done()")
            entry = False
        else:
            words.append(("word", word))  # waiters[count++] = {low_word(&line.word), word};
    yield futex_wait(*words)  # futex_wait_any(waiters, count, until)
    yield goto(notifier_loop, broken, entry)


def _take_arriving(m: Any) -> bool:
    arrived, m["arriving"] = bool(m["arriving"]), 0
    return arrived


# ---- threads ---------------------------------------------------------------------------------------------------------


def caller(broken: Broken, generations: int) -> Steps:
    """One thread that calls twice with the same slot."""
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


def awaiting(broken: Broken) -> Steps:
    """The thread of the event loop: submits, and hands the request to the notifier; stops it when it was called back."""
    yield call(submit, broken, 1)
    yield call(notifier_add, broken)
    patient = yield choose(True, False)
    if patient:
        yield when(lambda m: bool(m["called"]), "is called back")
    yield call(notifier_stop, broken)


def processes(kind: str, broken: Broken) -> list[Process]:
    match kind:
        case "one waiter, two generations":
            return [Process("client", caller, (broken, 2)), Process("worker", worker, (broken, 2))]
        case "two waiters" | "a waiter that gives up":
            other = Process("other", other_waiter, (broken, kind != "two waiters"))
            generations = 1 if kind == "two waiters" else 2
            return [Process("client", caller, (broken, generations)), other, Process("worker", worker, (broken, generations))]
        case "cancelled by another thread":
            other = Process("other", canceller, (broken,))
            return [Process("client", caller, (broken, 1)), other, Process("worker", never, daemon=True)]
        case "cancelled while it ends":
            other = Process("other", canceller, (broken,))
            return [Process("client", caller, (broken, 1)), other, Process("worker", worker, (broken, 1))]
        case "notifier":
            loop = Process("notifier", notifier_loop, (broken,))
            return [Process("client", awaiting, (broken,)), loop, Process("worker", worker, (broken, 1))]
    raise ValueError(kind)


def never() -> Steps:
    yield when(lambda m: False, "is busy with something else")
