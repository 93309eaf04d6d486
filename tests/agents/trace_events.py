"""Is it what Chrome's trace event format says, so far as Perfetto insists on it?"""

from __future__ import annotations

import json
from typing import Any

_SCOPES = {"g", "p", "t"}
_META = {"process_name", "thread_name"}


def check(document: dict[str, Any]) -> None:
    """Every event has phase, time, process and thread; tracks have names; spans of a track nest; arrows and requests
    have both ends; arrows are fixed to spans."""
    events = json.loads(json.dumps(document, allow_nan=False))["traceEvents"]
    named = set()
    for event in events:
        assert event["ph"] in {"M", "X", "i", "b", "e", "C", "s", "t", "f"}, event
        assert isinstance(event["name"], str), event
        assert event["name"], event
        assert isinstance(event["ts"], (int, float)), event
        assert event["ts"] >= 0, event
        assert type(event["pid"]) is int, event
        assert type(event["tid"]) is int, event
        if event["ph"] == "M":
            assert event["name"] in _META, event
            assert event["args"]["name"], event
            named.add((event["name"], event["pid"], event["tid"]))
        else:
            assert event["cat"], event
        if event["ph"] == "i":
            assert event["s"] in _SCOPES, event
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values()), event
    tracks = {(event["pid"], event["tid"]) for event in events if event["ph"] != "M"}
    assert tracks <= {(pid, tid) for what, pid, tid in named if what == "thread_name"}
    assert {pid for pid, _ in tracks} <= {pid for what, pid, _ in named if what == "process_name"}
    _check_spans(events)
    _check_pairs(events)
    _check_arrows(events)


def _check_spans(events: list[dict[str, Any]]) -> None:
    open_until: dict[tuple[int, int], list[float]] = {}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        assert event["dur"] >= 0, event
        ends = open_until.setdefault((event["pid"], event["tid"]), [])
        end = round(event["ts"] + event["dur"], 4)
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        assert not ends or end <= ends[-1], f"{event} reaches beyond the span around it"
        ends.append(end)


def _check_pairs(events: list[dict[str, Any]]) -> None:
    begun: dict[tuple[str, int], float] = {}
    for event in events:
        if event["ph"] == "b":
            key = event["cat"], event["id"]
            assert key not in begun, event
            begun[key] = event["ts"]
        elif event["ph"] == "e":
            assert begun[event["cat"], event["id"]] <= event["ts"], event


def _check_arrows(events: list[dict[str, Any]]) -> None:
    spans: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            spans.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    paths: dict[int, str] = {}
    for event in events:
        if event["ph"] not in "stf":
            continue
        assert event["bp"] == "e", event
        around = [begin for begin, end in spans.get(event["tid"], ()) if begin <= event["ts"] <= end]
        assert around, f"{event} is fixed to nothing"
        paths[event["id"]] = paths.get(event["id"], "") + event["ph"]
    for number, phases in paths.items():
        assert phases == "s" + "t" * (len(phases) - 2) + "f", f"arrow {number}: {phases}"
