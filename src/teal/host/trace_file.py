"""A recording of a pool as Chrome's trace format, which Perfetto opens.

Theory of operation: one process in the picture, the pool; a track for each worker (runs as spans, preemptions as
marks), one for the agent (decisions as short spans at the time they were made, refusals as marks), one span for each
request from the message that it may run to its end, and a counter of those that wait. A request that leaves its worker
has several spans there; arrows lead from each decision about it to what it made run, and on to the next. Times are in
microseconds since the first event, as that format has them. Every event says its phase, time, process and thread, and
every thread has a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

_POOL, _AGENT, _WORKER = 1, 1, 10  # process, and threads of it: worker n is _WORKER + n
_NOBODY = 0xFFFFFFFF

# core/agents/protocol.hpp
MESSAGES = {
    64: "new", 65: "runnable", 66: "blocked", 67: "yield", 68: "preempt", 69: "done", 70: "departed", 71: "priority",
    72: "affinity", 73: "latch_failure", 128: "worker_available", 129: "worker_busy", 130: "worker_tick",
    131: "worker_gone", 132: "worker_came", 192: "timer", 193: "wakeup", 194: "rescan",
}  # fmt: skip
OUTCOMES = (
    "complete", "aborted", "already_running", "target_stale", "not_found", "not_runnable", "agent_stale",
    "worker_offline", "worker_unavailable", "invalid_flags", "invalid_target", "not_permitted", "invalid_worker",
    "no_agent", "unsupported_version", "poisoned", "timeout",
)  # fmt: skip
_ENDS = ("done", "failed", "preempted", "yielded")
_LAST = (0, 1)  # of _ENDS: it does not go on
_SHOWN = 0.1  # µs that a decision's span is wide, so that one sees it; how long it took nobody says

Event = Sequence[Any]  # (kind, at, begin, worker, record, why, more)
Made = dict[str, Any]


def document(raw: Mapping[str, Any]) -> Made:
    """The whole file. raw: pool, policy, workers (pid by index), names (by version line), events, left_out."""
    events: list[Event] = sorted(raw["events"], key=lambda event: event[2] if event[0] == "run" else event[1])
    made = [*_runs(raw, events), *_decisions(events), *_marks(events), *_requests(events), *_arrows(events)]
    made.sort(key=lambda event: event["ts"])  # stable: a span before the arrow that is fixed to it
    made = [*_tracks(raw, {event["tid"] for event in made}), *made]
    about = {"pool": raw["pool"], "policy": raw["policy"], "left_out": raw["left_out"]}
    return {"traceEvents": made, "displayTimeUnit": "ns", "otherData": about}


def _tracks(raw: Mapping[str, Any], used: Set[int]) -> Iterator[Made]:
    """Names of all tracks that there are events on, in the order of their numbers."""
    names = {_AGENT: f"agent {raw['policy']}" if raw["policy"] else "no agent"}
    names |= {_WORKER + int(index): f"worker {index} (process {pid})" for index, pid in raw["workers"].items()}
    yield _meta("process_name", _AGENT, f"pool {raw['pool']}")
    for thread in sorted(used | names.keys()):
        yield _meta("thread_name", thread, names.get(thread, f"worker {thread - _WORKER} (gone)"))


def _meta(what: str, thread: int, name: str) -> Made:
    return {"ph": "M", "name": what, "ts": 0.0, "pid": _POOL, "tid": thread, "args": {"name": name}}


def _runs(raw: Mapping[str, Any], events: Sequence[Event]) -> Iterator[Made]:
    names = {int(line): name for line, name in raw["names"].items()}
    for kind, at, begin, worker, record, why, more in events:
        if kind == "run":
            end = _ENDS[why] if why < len(_ENDS) else str(why)
            yield _event("X", names.get(more, f"line {more}"), "run", _WORKER + worker, begin, dur=(at - begin) / 1000,
                         args={"request": record, "end": end})  # fmt: skip


def _decisions(events: Sequence[Event]) -> Iterator[Made]:
    """When they were made. Those that were carried out are spans, as arrows begin there; none reaches into another."""
    made = sorted((event for event in events if event[0] == "decision"), key=lambda event: event[2])
    shown, after = _SHOWN, _NOBODY << 32
    for _, at, begin, worker, record, why, more in reversed(made):
        outcome = OUTCOMES[why] if why < len(OUTCOMES) else str(why)
        about = {"request": record, "worker": worker, "outcome": outcome, "slice_us": more}
        about["age_us"] = (at - begin) / 1000
        if why != 0:
            yield _event("i", f"refused: {outcome}", "refusal", _AGENT, begin, s="t", args=about)
            continue
        shown, after = min(_SHOWN, (after - begin) / 1000) if after > begin else shown, begin
        yield _event("X", "decision", "decision", _AGENT, begin, dur=shown, args=about)


def _marks(events: Sequence[Event]) -> Iterator[Made]:
    for kind, at, _, worker, record, why, more in events:
        if kind == "agent":
            yield _event("i", "its decisions count" if why else "falls back", "agent", _AGENT, at, s="p",
                         args={"incarnation": more})  # fmt: skip
        elif kind == "message" and MESSAGES.get(why) in ("preempt", "yield", "worker_available", "worker_gone"):
            yield _event("i", MESSAGES[why], "message", _WORKER + worker, at, s="t", args={"request": record})


def _requests(events: Sequence[Event]) -> Iterator[Made]:
    """A span for each, and how many of them wait."""
    ids: dict[int, int] = {}
    waits: set[int] = set()
    count = 0
    for kind, at, begin, _, record, why, _ in events:
        what = MESSAGES.get(why) if kind == "message" else None
        before = len(waits)
        if what == "new":
            count += 1
            ids[record] = count
            yield _event("b", "request", "request", _AGENT, at, id=count, args={"record": record})
        if what in ("new", "runnable", "preempt", "yield"):
            waits.add(record)
        elif what in ("done", "departed", "blocked") or kind == "run":
            waits.discard(record)
        if what in ("done", "departed") and record in ids:
            yield _event("e", "request", "request", _AGENT, at, id=ids.pop(record), args={"end": what})
        if len(waits) != before:
            when = begin if kind == "run" else at
            yield _event("C", "requests that wait", "queue", _AGENT, when, args={"requests": len(waits)})


def _arrows(events: Sequence[Event]) -> Iterator[Made]:
    """For each request: decision → run → decision → run → …, as far as it was recorded."""
    paths: dict[int, list[tuple[int, int]]] = {}  # by record: thread and time of each span
    count = 0
    for kind, _, begin, worker, record, why, _ in events:
        if kind == "decision" and why == 0 and record != _NOBODY:
            paths.setdefault(record, []).append((_AGENT, begin))
        elif kind == "run":
            paths.setdefault(record, []).append((_WORKER + worker, begin))
        ended = (kind == "run" and why in _LAST) or (kind == "message" and MESSAGES.get(why) in ("done", "departed"))
        if ended and record in paths:  # the record is another request's from here on
            count += 1
            yield from _arrow(count, paths.pop(record))
    for path in paths.values():
        count += 1
        yield from _arrow(count, path)


def _arrow(number: int, path: Sequence[tuple[int, int]]) -> Iterator[Made]:
    for i, (thread, at) in enumerate(path if len(path) > 1 else ()):
        phase = "s" if i == 0 else "f" if i == len(path) - 1 else "t"
        yield _event(phase, "request", "path", thread, at, id=number, bp="e")


def _event(phase: str, name: str, category: str, thread: int, at: int, **more: Any) -> Made:
    return {"ph": phase, "name": name, "cat": category, "pid": _POOL, "tid": thread, "ts": at / 1000, **more}
