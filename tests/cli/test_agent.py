"""`teal agent`, `teal stat --agents` and `teal trace`, against a host in the foreground."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))
from trace_events import check

Serve = Callable[..., Any]
Typed = Callable[[Any], Any]


@pytest.fixture
def at(serve: Serve, typed: Typed) -> Callable[..., Any]:
    """``at("agent ls")``: that command, against a host with an agent in its second pool."""
    host = serve("--pool", "fast:policy=shinjuku:quantum=1ms,link=shm", "--load", "echo=builtin:identity",
                 "--load", "fast:sum=builtin:sum")  # fmt: skip

    def run(line: str) -> Any:
        return typed([*line.split(), "--host", host.name])

    run.address = host.ready["address"]  # type: ignore[attr-defined]
    return run


def calls(at: Any, model: str, count: int) -> None:
    with teal.connect(at.address) as host:
        loaded = host.model(model)
        for _ in range(count):
            loaded(np.ones(4, np.float32))


def test_from_start_to_stop(at: Any) -> None:
    assert [agent["pools"] for agent in at("agent ls --json").json] == [["fast"]]
    said = at("agent start default --policy fifo --json").json
    assert (said["pools"], said["policies"], said["state"]) == (["default"], ["fifo"], "online")
    again = at("agent start default --policy fifo")
    assert again.status == 1
    assert again.err.startswith("Busy: pool 'default' has an agent already")
    upgraded = at("agent upgrade default --policy edf --json").json
    assert upgraded["pid"] != said["pid"]
    listed = at("agent ls").out.splitlines()
    assert listed[0].split() == [
        "pools",
        "policy",
        "state",
        "process",
        "core",
        "place",
        "link",
        "fallbacks",
        "returns",
        "restarts",
    ]
    assert any(line.split()[:3] == ["default", "edf", "online"] for line in listed)
    assert at("agent stop default --json").json == {"stopped": "default"}
    assert at("agent stop default").err.startswith("NotFound: ")


def test_settings(at: Any) -> None:
    said = at("agent set fast quantum=20us --json").json
    assert said["settings"]["quantum"] == "20us"
    assert "quantum=20us" in at("agent set fast quantum=20us").out
    assert at("agent set fast quantum=never").status == 1
    assert at("agent set fast quantum").status == 2


def test_how_they_do(at: Any) -> None:
    calls(at, "sum", 50)
    shown = at("agent stat fast --dump")
    assert shown.status == 0
    for word in ("staged hits", "staleness", "decision", "online"):
        assert word in shown.out
    found = at("agent stat --json").json
    (agent,) = found["agents"]
    assert agent["seats"]["fast"]["completed"] + agent["seats"]["fast"]["local"] == 50
    assert [line["what"] for line in found["audit"]] == ["online"]
    assert at("agent stat --dump").status == 2
    live = at("stat --agents --interval 50ms --json").json
    assert live["agents"][0]["pools"] == ["fast"]
    assert live["rates"].keys() == {"fast"}
    assert "fast" in at("stat --agents --once").out


def test_a_trace_opens(at: Any, tmp_path: Path) -> None:
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            calls(at, "sum", 20)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        said = at(f"trace fast --seconds 300ms -o {tmp_path}/out.json --json").json
    finally:
        stop.set()
        thread.join()
    assert said["events"] > 0
    document = json.loads((tmp_path / "out.json").read_text())
    check(document)
    events = document["traceEvents"]
    runs = [event for event in events if event["ph"] == "X" and event["cat"] == "run"]
    assert runs
    assert {run["name"] for run in runs} == {"sum"}
    assert all(run["dur"] >= 0 and run["ts"] >= 0 for run in runs)
    assert any(event["name"] == "decision" for event in events)
    assert at(f"trace nothing -o {tmp_path}/none.json").status == 1
    assert not (tmp_path / "none.json").exists()


def test_help_has_an_example(typed: Typed) -> None:
    for command in ("agent", *(f"agent {name}" for name in ("start", "upgrade", "stop", "set", "ls", "stat")), "trace"):
        said = typed([*command.split(), "--help"])
        assert said.status == 0
        assert "Example" in said.out
        assert command == "agent" or "--json" in said.out


def test_a_policy_of_ones_own(at: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from teal.agents import Policy\n\n\nclass Mine(Policy):\n"
        "    def __init__(self):\n        self.waiting = []\n\n"
        "    def runnable(self, request):\n        self.waiting.append(request)\n\n"
        "    def pick(self, worker):\n        return self.waiting.pop() if self.waiting else None\n"
    )
    monkeypatch.chdir(tmp_path)
    assert at("agent start default --policy mine.py:Mine").out.startswith(
        f"started {tmp_path}/mine.py:Mine for default"
    )
    calls(at, "echo", 20)
    os.unlink(tmp_path / "mine.py")
    assert at("agent upgrade default").status == 1
    assert at("agent ls --json").json[0]["state"] == "online"


_WRONG = [
    ("--policy nosuch", "expected one of fifo, fifo-per-worker, edf, fair, shinjuku, composite"),
    ("--policy shinjuku:quantum=20", "such as 50us, 2ms or 1.5s"),
    ("--policy shinjuku:colour=blue", "it has quantum"),
    ("--policy shinjuku,quantum=20us", "expected a policy such as shinjuku:quantum=50us"),
    ("--policy none.py:Mine", "no such file; give the path"),
    ("--policy mine.py", "give the class in that file too, as in mine.py:Mine"),
    ("--policy no.such:Mine", "give package.module:Class or file.py:Class"),
    ("--policy fifo:inline=1", "teal serve --policy fifo:inline=1"),
    ("--policy fifo --link string", "expected shm, pcie or cxl"),
    ("--policy fifo --link pcie:prefetch=maybe", "expected on or off"),
    ("--policy fifo --agent-core 4000", "this process may use"),
    ("--policy fifo --placement auto", "give agent_core= too"),
    ("--policy fifo --agents 2", "each needs one"),
    ("--policy fifo --agents 2 --agent-core 0", "one core for each"),
    ("--policy fifo --placement everywhere", "'offload', 'host', 'auto'"),
    ("--policy fifo --max-wait 1us", "expected at least 1ms"),
    ("--policy fifo --heartbeat 20ms", "expected 30ms to 60s"),
    ("--policy fifo --heartbeat 61s", "expected 30ms to 60s"),
    ("--policy fifo --max-wait soon", "such as 200us, 10ms or 1.5s"),
    ("--policy fifo --agent-memory lots", "such as 4096, 512M or 4G"),
    ("--policy fifo --policy edf", "2 policies for 1 pools"),
    ("", "Missing option '--policy'"),
]


def test_wrong_values_are_refused_with_what_is_expected(at: Any, tmp_path: Path) -> None:
    for options, words in _WRONG:
        said = at(f"agent start default {options}")
        assert said.status in (1, 2), options
        assert words in said.err, options
    assert [agent["pools"] for agent in at("agent ls --json").json] == [["fast"]]
    for command in (
        "agent set nopool quantum=20us",
        "agent stop default",
        "agent stat nopool",
        "agent upgrade default",
    ):
        assert at(command).err.startswith("NotFound: pool '"), command
    said = at(f"trace fast -o {tmp_path}/none/out.json")
    assert (said.status, "no folder that can be written to" in said.err) == (2, True)


def test_programs_get_all_numbers(at: Any) -> None:
    calls(at, "sum", 20)
    for command in ("agent stat --json", "stat --agents --json"):
        (agent,) = at(command).json["agents"]
        seat = agent["seats"]["fast"]
        assert seat["settings"]["quantum"] == "1ms"
        assert {"hit_rate", "staleness", "refused", "queued", "unread", "preempted", "yielded", "asked", "asks_in_vain",
                "asks_refused", "bells", "rings", "lost", "rescans"} <= seat.keys()  # fmt: skip
        assert list(seat["stages"]) == ["message", "decision", "commit", "start", "run", "done"]
        assert {"fallbacks", "restarts", "upgrades", "moves"} <= agent.keys()


def test_several_share_a_pool(serve: Serve, typed: Typed) -> None:
    host = serve("--workers", "2", "--policy", "fifo", "--agents", "2")
    agents = typed(["agent", "ls", "--json", "--host", host.name]).json
    assert [agent["workers"] for agent in agents] == [[0], [1]]
    listed = typed(["agent", "ls", "--host", host.name]).out
    assert "default (workers 0)" in listed
    assert "default (workers 1)" in listed
    shown = typed(["stat", "--agents", "--json", "--host", host.name]).json
    assert [agent["seats"]["default"]["pool"] for agent in shown["agents"]] == ["default/0", "default/1"]
    assert typed(["agent", "stop", "default", "--host", host.name]).status == 0
    assert typed(["agent", "ls", "--json", "--host", host.name]).json == []
