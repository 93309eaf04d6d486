"""A recording becomes a file that Chrome's trace viewer and Perfetto take."""

from __future__ import annotations

import json
from typing import Any

from trace_events import check

from teal.host.trace_file import document

RAW: dict[str, Any] = {
    "pool": "default",
    "policy": "shinjuku",
    "workers": {0: 100, 1: 101},
    "names": {3: "echo"},
    "left_out": 2,
    "events": [
        ("message", 1000, 1000, 0xFFFF, 7, 64, 1),
        ("decision", 2500, 2000, 1, 7, 0, 50),
        ("run", 60_000, 3000, 1, 7, 2, 3),
        ("message", 61_000, 61_000, 1, 7, 68, 2),
        ("decision", 62_500, 62_000, 0, 7, 11, 50),
        ("run", 90_000, 70_000, 1, 7, 0, 3),
        ("message", 91_000, 91_000, 1, 7, 69, 3),
        ("agent", 95_000, 95_000, 0xFFFF, 0xFFFFFFFF, 0, 1),
    ],
}


def of(phase: str, category: str = "") -> list[dict[str, Any]]:
    events = json.loads(json.dumps(document(RAW)))["traceEvents"]
    return [event for event in events if event["ph"] == phase and category in ("", event.get("cat"))]


def test_runs_are_spans_on_their_workers_track() -> None:
    first, second = of("X", "run")
    assert (first["name"], first["ts"], first["dur"], first["tid"], first["args"]["end"]) == (
        "echo",
        3.0,
        57.0,
        11,
        "preempted",
    )
    assert (second["ts"], second["dur"], second["args"]["end"]) == (70.0, 20.0, "done")
    names = {event["tid"]: event["args"]["name"] for event in of("M") if event["name"] == "thread_name"}
    assert names[11] == "worker 1 (process 101)"
    assert names[1] == "agent shinjuku"


def test_decisions_are_spans_and_refusals_marks_where_they_were_made() -> None:
    marks = {event["name"]: event for event in of("i")}
    (decision,) = of("X", "decision")
    assert (decision["ts"], decision["dur"], decision["tid"]) == (2.0, 0.1, 1)
    assert decision["args"] == {
        "request": 7,
        "worker": 1,
        "outcome": "complete",
        "slice_us": 50,
        "age_us": 0.5,
    }
    assert marks["refused: not_permitted"]["cat"] == "refusal"
    assert marks["preempt"]["tid"] == 11
    assert marks["falls back"]["ts"] == 95.0


def test_a_request_is_one_span_and_counts_while_it_waits() -> None:
    (begin,), (end,) = of("b"), of("e")
    assert (begin["id"], begin["ts"], end["ts"]) == (end["id"], 1.0, 91.0)
    assert [(event["ts"], event["args"]["requests"]) for event in of("C")] == [(1.0, 1), (3.0, 0), (61.0, 1), (70.0, 0)]


def test_every_event_has_what_the_format_asks_for() -> None:
    for event in document(RAW)["traceEvents"]:
        assert {"ph", "name", "pid", "tid"} <= set(event)
        assert event["ph"] == "M" or isinstance(event["ts"], float)
    assert document(RAW)["otherData"]["left_out"] == 2


def test_it_is_what_the_format_says() -> None:
    check(document(RAW))


def test_arrows_lead_from_decisions_to_runs_and_on() -> None:
    arrows = [event for event in document(RAW)["traceEvents"] if event.get("cat") == "path"]
    assert [(a["ph"], a["tid"], a["ts"]) for a in arrows] == [("s", 1, 2.0), ("t", 11, 3.0), ("f", 11, 70.0)]
    assert len({a["id"] for a in arrows}) == 1


def test_decisions_made_at_once_do_not_reach_into_each_other() -> None:
    made = [("decision", 900, at, 1, 7, 0, 0) for at in (100, 150, 150, 400)]
    decisions = [e for e in document({**RAW, "events": made})["traceEvents"] if e["ph"] == "X"]
    assert [(d["ts"], d["dur"]) for d in decisions] == [(0.1, 0.05), (0.15, 0.1), (0.15, 0.1), (0.4, 0.1)]
    check(document({**RAW, "events": made}))


def test_a_record_that_serves_again_is_another_request() -> None:
    """Without an agent there are runs only."""
    runs = [("run", at + 50, at, 0, 3, why, 3) for at, why in ((0, 2), (100, 0), (200, 0), (300, 3), (400, 1))]
    arrows = [e for e in document({**RAW, "events": runs})["traceEvents"] if e.get("cat") == "path"]
    assert [(a["ph"], a["ts"]) for a in arrows] == [("s", 0.0), ("f", 0.1), ("s", 0.3), ("f", 0.4)]
