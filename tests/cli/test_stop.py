"""`teal stop`: waits until the host is gone; drains, or does not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import teal

Serve = Callable[..., Any]
Typed = Callable[[Any], Any]


def test_returns_when_the_process_is_gone(serve: Serve, typed: Typed) -> None:
    host = serve()
    said = typed(["stop", "--host", host.name])
    assert said.status == 0
    assert said.out.startswith(f"stopped {host.ready['address']} (process {host.process.pid}) in ")
    assert host.process.wait() == 0
    again = typed(["stop", "--host", host.name, "--json"])
    assert (again.status, again.out) == (1, "")
    assert again.err.startswith("NotFound: no host listens at ")


def test_drains(serve: Serve, typed: Typed, started: Any, until_inside: Any) -> None:
    host = serve("--load", "sleep=builtin:sleep")
    call = started("infer", "sleep", "microseconds=400000", "--host", host.name)
    until_inside(host.name, call)
    said = typed(["stop", "--host", host.name, "--json"]).json
    assert said["process_gone"] is True
    assert said["pid"] == host.process.pid
    assert said["seconds"] > 0
    out, err = call.communicate()
    assert call.returncode == 0, err
    assert out == "microseconds  int64[]\n  400000\n"


def test_now_and_timeout_do_not_wait_for_ever(serve: Serve, typed: Typed, started: Any, until_inside: Any) -> None:
    for how in (["--now"], ["--timeout", "50ms"]):
        host = serve("--load", "sleep=builtin:sleep")
        call = started("infer", "sleep", "microseconds=60000000", "--host", host.name)
        until_inside(host.name, call)
        assert typed(["stop", *how, "--host", host.name, "--json"]).json["process_gone"] is True
        out, err = call.communicate()
        assert (call.returncode, out) == (1, "")
        assert err.count("\n") == 1


def test_now_cuts_a_drain_short(serve: Serve, typed: Typed, started: Any, until_inside: Any) -> None:
    host = serve("--load", "sleep=builtin:sleep")
    call = started("infer", "sleep", "microseconds=60000000", "--host", host.name)
    until_inside(host.name, call)
    patient = started("stop", "--timeout", "50s", "--json", "--host", host.name)
    refused = "PeerDied: host: it is stopping, and takes no more work"
    names = (f"more{n}" for n in range(100))
    while typed(["load", next(names), "builtin:sum", "--host", host.name]).err != refused:
        assert patient.poll() is None
        time.sleep(0.05)
    assert typed(["stat", "--json", "--host", host.name]).json["active"] == 1  # it still says how it is
    assert typed(["infer", "sleep", "microseconds=1", "--host", host.name]).err == refused
    assert typed(["stop", "--now", "--json", "--host", host.name]).json["process_gone"] is True
    out, err = call.communicate()
    assert (call.returncode, out) == (1, "")
    assert err == "teal: Cancelled: sleep: by host: the host is stopping\n"
    assert json.loads(patient.communicate()[0])["process_gone"] is True


def test_an_embedded_host_stops_and_its_program_goes_on(typed: Typed, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("teal.cli.stop._EXIT_S", 0.01)
    with teal.Host(name):
        said = typed(["stop", "--host", name])
        assert said.status == 0
        assert ", which goes on) in " in said.out
