"""`teal stat`: once, over an interval, watched, live on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import teal as public
from teal import _core

Serve = Callable[..., Any]
Typed = Callable[[Any], Any]


@pytest.fixture(scope="module")
def host(serve_all: Serve) -> Any:
    return serve_all("--load", "echo=builtin:identity")


def test_json_counts_every_call(host: Any, typed: Typed, name: str) -> None:
    with public.connect(host.ready["address"]) as client:
        model = client.load(name, "builtin:identity")
        for _ in range(7):
            model([1, 2])
        echo: Any = None
        while echo is None or echo["stages"]["run"]["count"] < 7:  # the worker counts after it has answered
            found = typed(["stat", "--json", "--host", host.name]).json
            (echo,) = (m for m in found["models"] if m["name"] == name)
        (me,) = (c for c in found["clients"] if c["pid"] == os.getpid())
    assert found["pid"] == host.process.pid
    assert found["since_start"] is True
    assert [w["pid"] for w in found["workers"]] == host.ready["workers"]
    assert sum(w["requests"] for w in found["workers"]) >= 7
    assert (echo["version"], echo["requests"], echo["in_flight"]) == (1, 7, 0)
    assert echo["stages"]["queue"]["count"] == echo["stages"]["run"]["count"] == 7
    assert (me["pid"], me["requests"], me["in_flight"], me["garbage"]) == (os.getpid(), 7, 0, 0)
    assert me["stages"]["wake"]["count"] == me["stages"]["total"]["count"] == me["stages"]["copy"]["count"] == 7
    assert 0 < me["stages"]["total"]["p50_us"] <= me["stages"]["total"]["max_us"]


def test_an_interval_shows_only_itself(host: Any, typed: Typed, name: str) -> None:
    typed(["load", name, "builtin:identity", "--host", host.name])
    typed(["infer", name, "x=1", "--host", host.name])
    model: Any = None
    while model is None or model["in_flight"] > 0:  # the worker counts after it has answered
        found = typed(["stat", "--json", "--interval", "20ms", "--host", host.name]).json
        (model,) = (m for m in found["models"] if m["name"] == name)
    assert found["since_start"] is False
    assert found["interval_s"] >= 0.02
    assert (model["requests"], model["requests_per_s"]) == (1, 0)
    assert model["stages"]["run"]["count"] <= 1


def test_a_models_row_has_what_its_callers_saw(serve: Serve, typed: Typed) -> None:
    """Copies of clients, wake and total, also of clients that have left, and as model.statistics() has them."""
    host = serve("--load", "echo=builtin:identity")
    at = ["--host", host.name]
    with public.connect(host.ready["address"]) as client:
        model = client.model("echo")
        for _ in range(3):
            model([1, 2])
        while typed(["stat", "--json", *at]).json["models"][0]["stages"]["run"]["count"] < 3:
            pass
        mine = model.statistics()
        [echo] = typed(["stat", "--json", *at]).json["models"]
        assert (echo["copies_in"], echo["bytes_copied"]) == (mine.copies_in, mine.bytes_copied) == (3, 48)
        for stage in ("queue", "run", "copy", "wake", "total"):
            assert echo["stages"][stage]["count"] == mine.stages[stage].count == 3
    while (found := typed(["stat", "--json", *at]).json)["clients"]:
        pass
    [pool] = found["pools"]
    while not pool["sessions_gone"]:  # a worker lets go first
        [pool] = typed(["stat", "--json", *at]).json["pools"]
    assert (pool["sessions_gone"], pool["requests_gone"]) == (1, 3)
    [echo] = typed(["stat", "--json", *at]).json["models"]
    assert [echo["stages"][stage]["count"] for stage in ("copy", "wake", "total")] == [3, 3, 3]
    said = typed(["stat", *at]).out
    assert "1 client that left had 3 requests; the models' rows have them" in said
    assert "of all versions of the name" not in said
    typed(["load", "echo", "builtin:identity", *at])
    assert (
        "copy, wake and total: as callers saw them, of all versions of the name since it came"
        in typed(["stat", *at]).out
    )
    quiet = typed(["stat", "--json", "--interval", "20ms", *at]).json["models"][0]
    assert [quiet["stages"][stage]["count"] for stage in ("copy", "wake", "total")] == [0, 0, 0]


def test_more_models_than_a_client_counts_apart(serve: Serve, typed: Typed) -> None:
    host = serve()
    with public.connect(host.ready["address"]) as client:
        for n in range(_core.MODELS_COUNTED_APART + 2):
            client.load(f"m{n}", "builtin:identity")(1)
        found = typed(["stat", "--json", "--host", host.name]).json
        assert found["unattributed"] == 2
        assert sum(m["stages"]["total"]["count"] for m in found["models"]) == _core.MODELS_COUNTED_APART
        said = typed(["stat", "--host", host.name]).out
        assert "2 calls are in no row's copy, wake and total: a client counts 63 models apart" in said


def test_text_when_stdout_is_no_terminal(host: Any, typed: Typed) -> None:
    said = typed(["stat", "--host", host.name])
    assert said.status == 0
    lines = said.out.splitlines()
    assert lines[0].startswith(f"host {host.ready['address']}  process {host.process.pid}  up ")
    assert lines[0].endswith("(since its start)")
    assert "\x1b" not in said.out
    words = [line.split() for line in lines]
    assert ["worker", "pool", "state", "requests", "requests/s", "sleeps/s"] in words
    assert [row[:2] for row in words if row[:1] == ["echo"]] == [["echo", "1*"]]
    assert "no models are loaded" not in said.out


def test_watch_is_one_object_a_line(host: Any, started: Any) -> None:
    process = started("stat", "--json", "--watch", "--interval", "20ms", "--host", host.name)
    for _ in range(3):
        assert json.loads(process.stdout.readline())["pid"] == host.process.pid
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")


def test_watch_ends_with_its_host(serve: Serve, started: Any) -> None:
    host = serve()
    process = started("stat", "--json", "--watch", "--interval", "20ms", "--host", host.name)
    process.stdout.readline()
    host.process.kill()
    _, err = process.communicate()
    assert process.returncode == 1
    assert err == "teal: PeerDied: host: its process is gone\n"


def test_live_on_a_terminal(host: Any) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from teal.cli import main; main()", "stat", "--interval", "20ms"]
    terminal = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        [*command, "--host", host.name], stdin=theirs, stdout=theirs, stderr=theirs, env=terminal
    )
    os.close(theirs)
    seen = b""
    try:
        while seen.count(b"(last ") < 3:  # frames
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"(since its start)" in seen
    assert b"Traceback" not in seen


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--watch"], "--watch goes with --json"),
        (["--watch", "--json", "--once"], "exclude each other"),
        (["--interval", "1ms"], "at least 10ms"),
        (["--interval", "often"], "expected a duration"),
    ],
)
def test_bad_arguments(typed: Typed, arguments: list[str], said: str) -> None:
    result = typed(["stat", *arguments])
    assert result.status == 2
    assert said in result.err
