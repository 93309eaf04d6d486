"""A recording of a pool as Chrome's trace format, which Perfetto opens.

Theory of operation: one process in the picture, the pool; a track for each worker (runs as spans, preemptions as
marks), one for the agent (decisions and refusals as marks at the time they were made), one span for each request from
the message that it may run to its end, and a counter of those that wait. Times are in microseconds since the first
event, as that format has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_POOL, _AGENT, _WORKER = 1, 1, 10  # process, and threads of it: worker n is _WORKER + n
_NOBODY = 0xFFFFFFFF

# core/agents/protocol.hpp
MESSAGES = {
    64: "new", 65: "runnable", 66: "blocked", 67: "yield", 68: "preempt", 69: "done", 70: "departed", 71: "priority",
    72: "affinity", 73: "latch_failure", 128: "worker_available", 129: "worker_busy", 130: "worker_tick",
    131: "worker_gone", 192: "timer", 193: "wakeup", 194: "rescan",
}  # fmt: skip
OUTCOMES = (
    "complete", "aborted", "already_running", "target_stale", "not_found", "not_runnable", "agent_stale",
    "worker_offline", "worker_unavailable", "invalid_flags", "invalid_target", "not_permitted", "invalid_worker",
    "no_agent", "unsupported_version", "poisoned", "timeout",
)  # fmt: skip
_ENDS = ("done", "failed", "preempted", "yielded")

Event = Sequence[Any]  # (kind, at, begin, worker, record, why, more)
Made = dict[str, Any]


def document(raw: Mapping[str, Any]) -> Made:
    """The whole file. raw: pool, policy, workers (pid by index), names (by version line), events, left_out."""
    events: list[Event] = sorted(raw["events"], key=lambda event: event[2] if event[0] == "run" else event[1])
    made = [*_tracks(raw), *_spans(raw, events), *_requests(events)]
    about = {"pool": raw["pool"], "policy": raw["policy"], "left_out": raw["left_out"]}
    return {"traceEvents": made, "displayTimeUnit": "ns", "otherData": about}


def _tracks(raw: Mapping[str, Any]) -> Iterator[Made]:
    yield _meta("process_name", 0, f"pool {raw['pool']}")
    yield _meta("thread_name", _AGENT, f"agent {raw['policy']}" if raw["policy"] else "no agent")
    for index, pid in raw["workers"].items():
        yield _meta("thread_name", _WORKER + int(index), f"worker {index} (process {pid})")


def _meta(what: str, thread: int, name: str) -> Made:
    return {"ph": "M", "name": what, "pid": _POOL, "tid": thread, "args": {"name": name}}


def _spans(raw: Mapping[str, Any], events: Sequence[Event]) -> Iterator[Made]:
    names = {int(line): name for line, name in raw["names"].items()}
    for kind, at, begin, worker, record, why, more in events:
        if kind == "run":
            end = _ENDS[why] if why < len(_ENDS) else str(why)
            yield _event("X", names.get(more, f"line {more}"), "run", _WORKER + worker, begin, dur=(at - begin) / 1000,
                         args={"request": record, "end": end})  # fmt: skip
        elif kind == "decision":
            outcome = OUTCOMES[why] if why < len(OUTCOMES) else str(why)
            what = "decision" if why == 0 else f"refused: {outcome}"
            about = {"request": record, "worker": worker, "outcome": outcome, "slice_us": more}
            about["age_us"] = (at - begin) / 1000
            yield _event("i", what, "decision" if why == 0 else "refusal", _AGENT, begin, s="t", args=about)
        elif kind == "agent":
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
            yield _event("C", "requests that wait", "queue", 0, when, args={"requests": len(waits)})


def _event(phase: str, name: str, category: str, thread: int, at: int, **more: Any) -> Made:
    return {"ph": phase, "name": name, "cat": category, "pid": _POOL, "tid": thread, "ts": at / 1000, **more}
