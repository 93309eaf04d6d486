"""What an agent knows of one request: the ring of messages, the count of lost ones, the status word and its tseq
(HostSeat::push, write, lose, restate; AgentSeat::poll, lost, read_word; AgentLoop::handle, rescan, stage; the check
of tseq), as a model.

Theory of operation: the host changes the request `changes` times; each change is told as all of it (`whole`: new,
runnable) or as one thing (`partial`: its priority), which means nothing to an agent that knows no such request. The
truth is the number of the last change. A word and a message are two halves each, so that a torn one shows. The agent
reads until there is nothing new, stages what it believes, and whoever holds the role compares tseqs and carries it
out. A writer may die after each store; the next one writes the word anew (`restate`).

`broken`: as in pool.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from .explore import Model, Process
from .operation import BrokenError, Memory, Steps, act, call, choose, fail, goto, load, lock, look, store, unlock, when

UNKNOWN = (0, 0)  # (tseq, change) of a request that the agent does not know


@dataclass(frozen=True)
class Notice:
    changes: str = "www"  # whole or partial
    ring: int = 2
    decides: bool = False
    dies: bool = False
    overtaken: bool = False  # the agent may find a writer in the way as often as it tries
    broken: frozenset[str] = frozenset()

    def memory(self) -> dict[Hashable, Any]:
        memory: dict[Hashable, Any] = {"role": 0, "head": 0, "known_tail": 0, "tail": 0, "overflow": 1, "tseq": 1}
        memory |= {"count": 0, "low": 0, "high": 0, "staged": None, "belief": UNKNOWN, "change": 0, "dead": 0}
        for slot in range(self.ring):
            memory["sequence", slot] = 0
            memory["payload low", slot] = memory["payload high", slot] = None
        return memory


# ---- HostSeat --------------------------------------------------------------------------------------------------------


def write(n: Notice, value: tuple[int, int]) -> Steps:
    """StatusEntry::write()."""
    count = yield look(lambda m: m["count"], "its own count")
    if "the count is not made odd" not in n.broken:
        yield store("count", count | 1)
    yield store("low", value, release=True)
    yield store("high", value, release=True)
    yield store("count", (count | 1) + 1, release=True)


def push(n: Notice, message: tuple[str, int, int]) -> Steps:
    head, full = yield act(lambda m: _full(n, m), "is the ring full")  # known_tail is the writer's own
    if full:
        if "nobody says that a message was lost" not in n.broken:
            overflow = yield look(lambda m: m["overflow"], "header.overflow")
            yield store("overflow", overflow + 1, release=True)
        return
    slot = head % n.ring
    yield store(("payload low", slot), message)
    yield store(("payload high", slot), message)
    # slot.sequence.store(head + 1, release)
    yield store(("sequence", slot), head + 1, release="push() stores relaxed" not in n.broken)
    yield store("head", head + 1)


def _full(n: Notice, m: Memory) -> tuple[int, bool]:
    head = m["head"]
    if head - m["known_tail"] >= n.ring:
        m["known_tail"] = m["tail"]  # desk_header().tail.load(acquire)
    return head, head - m["known_tail"] >= n.ring


def change(n: Notice) -> Steps:
    """One hold of the role: the word, then the message."""
    kind, *value = yield act(lambda m: _change(n, m), "the record changes")
    if "the message is sent before the word is written" in n.broken:
        yield call(push, n, (kind, *value))
        yield call(write, n, tuple(value))
        return
    yield call(write, n, tuple(value))
    yield call(push, n, (kind, *value))


def _change(n: Notice, m: Memory) -> tuple[str, int, int]:
    m["change"] += 1
    return n.changes[m["change"] - 1], _raise(n, m), m["change"]


def _raise(n: Notice, m: Memory) -> int:
    m["tseq"] += "tseq does not rise" not in n.broken
    return int(m["tseq"])


def host(n: Notice) -> Steps:
    taken = yield lock("role")
    if taken == "after_death":
        yield call(restate, n)
    more = yield look(lambda m: m["change"] < len(n.changes), "is there more")
    if more:
        yield call(change, n)
    yield unlock("role")
    if more:
        yield goto(host, n)


def restate(n: Notice) -> Steps:
    """Pool::restate(): the word from the record, then end_restating()."""
    if "nothing is restated" in n.broken:
        return
    tseq, number = yield act(lambda m: (_raise(n, m), m["change"]), "tseq rises")
    if "a message that lacks its head only is written over" not in n.broken:
        yield act(lambda m: _complete(n, m), "begin_restating(): the head")
    yield call(write, n, (tseq, number))
    if "what is restated is not told" not in n.broken:
        overflow = yield look(lambda m: m["overflow"], "header.overflow")
        yield store("overflow", overflow + 1, release=True)  # lose()
    yield call(push, n, ("rescan", 0, 0))


def _complete(n: Notice, m: Memory) -> None:
    m["head"] += m["sequence", m["head"] % n.ring] == m["head"] + 1


def heir(n: Notice) -> Steps:
    """Whoever takes the role after a death."""
    yield when(lambda m: bool(m["dead"]), "somebody has died")
    yield goto(host, n)


# ---- AgentSeat and AgentLoop -----------------------------------------------------------------------------------------


def attach(n: Notice) -> Steps:
    """What was told before is in the words."""
    position = yield load("head")  # header.head.load(acquire)
    yield store("tail", position, release=True)
    yield goto(agent, n, position, 0, UNKNOWN)


def agent(n: Notice, position: int, seen: int, belief: tuple[int, int]) -> Steps:
    """step(), whenever there is something new."""
    yield when(lambda m: _news(n, m, position, seen), "something is new")
    yield goto(poll, n, position, seen, belief)


def poll(n: Notice, position: int, seen: int, belief: tuple[int, int]) -> Steps:
    """while (poll(message)) handle(message);"""
    slot = position % n.ring
    sequence = yield load(("sequence", slot), lambda count: count == position + 1)  # slot.sequence.load(acquire)
    if not sequence:
        yield goto(lost, n, position, seen, belief)
    if "the tail moves before the message is read" in n.broken:
        yield store("tail", position + 1, release=True)
    low = yield load(("payload low", slot))
    high = yield load(("payload high", slot))
    if low is None or high is None:
        yield fail("a message is read that was never written")
    if "the tail moves before the message is read" not in n.broken:
        yield store("tail", position + 1, release=True)
    yield goto(poll, n, position + 1, seen, handle(n, belief, low, high))


def lost(n: Notice, position: int, seen: int, belief: tuple[int, int]) -> Steps:
    overflow = yield load("overflow")
    if overflow == seen:
        yield goto(decide, n, position, seen, belief)
    if n.decides and "what is staged is not withdrawn" not in n.broken:
        yield act(lambda m: m.__setitem__("staged", None), "withdraw_all()")
    belief, found = yield call(read_word, n, belief)  # rescan();
    seen = overflow
    if "lost() reads the count after the words" in n.broken:
        seen = yield load("overflow")
    if not found and "a word that could not be read is passed over" not in n.broken:
        seen = 0  # read_again()
    yield goto(decide, n, position, seen, belief)


def decide(n: Notice, position: int, seen: int, belief: tuple[int, int]) -> Steps:
    yield act(lambda m: _decide(n, m, belief), "believes, and stages")
    yield goto(agent, n, position, seen, belief)


def _news(n: Notice, m: Memory, position: int, seen: int) -> bool:
    return bool(m["sequence", position % n.ring] == position + 1 or m["overflow"] != seen)


def handle(n: Notice, belief: tuple[int, int], low: Any, high: Any) -> tuple[int, int]:
    if low != high:  # torn: the worst that it could say
        return max(low[1], high[1]), min(low[2], high[2])
    kind, tseq, number = low
    if kind == "rescan":
        return belief
    if tseq <= belief[0] and belief != UNKNOWN and "old news are believed" not in n.broken:
        return belief  # static_cast<std::int32_t>(m.tseq - request.tseq) <= 0
    if kind == "p" and belief == UNKNOWN:  # if (!same) return;
        return belief
    return tseq, number


def read_word(n: Notice, belief: tuple[int, int]) -> Steps:
    """Returns what is known now, and whether the word could be read. The writer's death is repaired by the next one."""
    while True:
        before = yield load("count")  # count.load(acquire)
        low = yield load("low")
        high = yield load("high")
        after = yield load("count")  # count.load(relaxed)
        whole = before % 2 == 0 and after == before
        if whole or "the count is not looked at" in n.broken:
            if low != high:
                yield fail(f"a word is read half: {low}, {high}")
            return (low or UNKNOWN), True
        patient = (yield choose(True, False)) if n.overtaken else True
        if not patient:
            return belief, False
        yield when(lambda m, b=before: m["count"] != b or not b % 2, "tries again")


def _decide(n: Notice, m: Memory, belief: tuple[int, int]) -> None:
    m["belief"] = belief  # a ghost
    if n.decides and belief != UNKNOWN and m["staged"] is None:
        m["staged"] = belief


def worker(n: Notice) -> Steps:
    """HostSeat::check(), and the record runs."""
    yield when(lambda m: m["staged"] is not None, "staged()")
    taken = yield lock("role")
    if taken == "after_death":
        yield call(restate, n)
    yield act(lambda m: _check(n, m), "claims, checks")
    yield unlock("role")
    yield goto(worker, n)


def _check(n: Notice, m: Memory) -> None:
    if m["staged"] is None:
        return
    tseq, number = m["staged"]
    m["staged"] = None
    own = m["low"]  # copy_own()
    if own == 0 or (own[0] != tseq and "tseq is not compared" not in n.broken):
        return  # target_stale: latch_failure
    if number != m["change"]:
        raise BrokenError(f"decided on change {number}, carried out at change {m['change']}")


def model(n: Notice, order: str = "tso", **options: Any) -> Model:
    processes = [Process("host", host, (n,), mortal=n.dies), Process("agent", attach, (n,), daemon=True)]
    if n.dies:
        processes.append(Process("heir", heir, (n,), daemon=True))
    if n.decides:
        processes.append(Process("worker", worker, (n,), daemon=True))

    def on_death(m: Memory, at: int) -> None:
        m["dead"] = 1

    def final(m: Memory) -> str | None:
        if m["belief"][1] != m["change"]:
            return f"it has been told all, and believes {m['belief']}: the request is at change {m['change']}"
        return None

    return Model(processes, n.memory(), order, int(n.dies), on_death, final=final, **options)
