"""A recording becomes a file that Chrome's trace viewer and Perfetto take."""

from __future__ import annotations

import json
from typing import Any

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


def of(phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(json.dumps(document(RAW)))["traceEvents"] if event["ph"] == phase]


def test_runs_are_spans_on_their_workers_track() -> None:
    first, second = of("X")
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


def test_decisions_and_refusals_are_marks_where_they_were_made() -> None:
    marks = {event["name"]: event for event in of("i")}
    assert marks["decision"]["ts"] == 2.0
    assert marks["decision"]["args"] == {
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
