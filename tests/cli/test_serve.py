"""`teal serve`: ready lines, refusals, signals, limits, the repository."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import teal

Serve = Callable[..., Any]
Typed = Callable[[Any], Any]
Started = Callable[..., subprocess.Popen[str]]
Inside = Callable[..., None]


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_ready_line_for_programs(serve: Serve) -> None:
    host = serve("--workers", "2", "--load", "echo=builtin:identity")
    assert host.ready["pid"] == host.process.pid
    assert host.ready["address"] == f"@teal/{os.getuid()}/{host.name}"
    assert len(set(host.ready["workers"])) == 2
    assert all(alive(pid) for pid in host.ready["workers"])
    assert host.ready["models"] == ["echo"]


def test_ready_line_for_people(started: Started, name: str) -> None:
    process = started("serve", "--name", name)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"host @teal/{os.getuid()}/{name} is ready: process {process.pid}, 1 worker (")
    process.send_signal(signal.SIGTERM)
    status, out, _ = ended(process)
    assert (status, out) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_and_its_workers(serve: Serve, number: signal.Signals) -> None:
    host = serve()
    host.process.send_signal(number)
    status, out, err = ended(host.process)
    assert (status, out) == (0, "")
    assert number.name in err
    assert "Traceback" not in err
    assert not any(alive(pid) for pid in host.ready["workers"])


def test_a_first_signal_drains(serve: Serve) -> None:
    host = serve("--load", "sleep=builtin:sleep")
    with teal.connect(host.ready["address"]) as client:
        sleep = client.model("sleep")
        calls = [sleep.submit(400_000), sleep.submit(1)]  # one runs, the other waits for it
        while client.statistics().active < 2 and not calls[0].done():
            time.sleep(0.01)
        host.process.send_signal(signal.SIGTERM)
        assert [int(call.result()[0].numpy()) for call in calls] == [400_000, 1]
    assert ended(host.process)[0] == 0


def test_a_second_signal_does_not_wait(serve: Serve, started: Started, until_inside: Inside) -> None:
    host = serve("--load", "sleep=builtin:sleep")
    call = started("infer", "sleep", "microseconds=60000000", "--host", host.name)
    until_inside(host.name, call)
    host.process.send_signal(signal.SIGTERM)
    for line in host.process.stderr:
        if "SIGTERM: stopping once" in line:
            break
    host.process.send_signal(signal.SIGTERM)
    assert ended(host.process)[0] == 0
    status, _, err = ended(call)
    assert status == 1
    assert err.startswith("teal: ")
    assert err.count("\n") == 1


def test_a_signal_while_a_model_loads(
    started: Started, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "loading"
    monkeypatch.setenv("TOYS_MARK", str(mark))
    process = started("serve", "--name", name, "--load", "slow=toys:Slow")
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    status, out, err = ended(process)
    assert (status, out) == (0, "")
    assert "Traceback" not in err


def test_a_second_start_is_refused(serve: Serve, started: Started) -> None:
    host = serve()
    status, out, err = ended(started("serve", "--name", host.name, "--json"))
    assert (status, out) == (1, "")
    assert err.startswith("teal: Busy: a host listens at ")
    assert f"process {host.process.pid} of user {os.getuid()}" in err
    assert err.count("\n") == 1


def test_kill_blocks_no_restart(serve: Serve) -> None:
    first = serve("--load", "echo=builtin:identity")
    first.process.kill()
    first.process.wait()
    again = serve(name=first.name)
    assert again.ready["pid"] != first.ready["pid"]


def test_two_hosts_at_once(serve: Serve, typed: Typed) -> None:
    one, two = serve("--load", "a=builtin:identity"), serve("--load", "b=builtin:sum")
    assert [m["name"] for m in typed(["ls", "--json", "--host", one.name]).json["models"]] == ["a"]
    assert [m["name"] for m in typed(["ls", "--json", "--host", two.ready["address"]]).json["models"]] == ["b"]
    assert typed(["stop", "--host", one.name]).status == 0
    assert typed(["infer", "b", "x=[1, 2]", "--json", "--host", two.name]).json["outputs"][0]["values"] == [3.0]


@pytest.mark.parametrize(("others", "mode"), [([], 0o600), (["--allow-user", "12345"], 0o666)])
def test_a_path_as_address(serve: Serve, typed: Typed, tmp_path: Path, others: list[str], mode: int) -> None:
    path = tmp_path / "teal.sock"
    host = serve("--listen", str(path), *others)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert typed(["stat", "--json", "--host", str(path)]).json["pid"] == host.process.pid
    assert typed(["stop", "--host", str(path)]).status == 0
    assert ended(host.process)[0] == 0
    assert not path.exists()


def test_a_model_that_does_not_load_ends_it(started: Started, serve: Serve, name: str, tmp_path: Path) -> None:
    status, out, err = ended(started("serve", "--name", name, "--json", "--load", f"x={tmp_path}/none.onnx"))
    assert (status, out) == (1, "")
    assert f"teal: NotFound: {tmp_path}/none.onnx: No such file or directory" in err
    assert "Traceback" not in err
    serve(name=name)  # the name is free again


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "a", "--listen", "@b"], "exclude each other"),
        (["--name", ".."], "host name '..'"),
        (["--name", "x" * 300], "expected 1 to 64 letters"),
        (["--listen", "@" + "x" * 300], "expected 1 to 100 bytes"),
        (["--listen", "/no/such/folder/teal.sock"], "cannot listen at"),
        (["--listen", "/dev/null"], "is not a socket"),
        (["--workers", "0"], "$.workers: 0, expected 1 to"),
        (["--workers", "many"], "not a valid integer"),
        (["--idle", "5 fortnights"], "expected a duration"),
        (["--threads", "0"], "$.threads: 0"),
        (["--cores", "1,x"], "expected cores such as"),
        (["--cores", "9-1"], "expected cores such as"),
        (["--cores", "0-99999999999999999999"], "expected cores such as"),
        (["--cores", "4000"], "this process may use"),
        (["--repository", "/no/such/folder"], "not a folder"),
        (["--load", "../x=builtin:sum"], "model name '../x'"),
        (["--allow-user", "no such user"], "no such user"),
        (["--max-bytes", "0"], "expected a size"),
        (["--max-bytes", "1"], "$.limits.bytes"),
        (["--max-clients", "-1"], "$.limits.clients"),
        (["--drain", "soon"], "expected a duration"),
        (["--log-level", "loud"], "is not one of"),
        (["surplus"], "unexpected extra argument"),
    ],
)
def test_bad_arguments(typed: Typed, name: str, arguments: list[str], said: str) -> None:
    chosen = [] if "--name" in arguments or "--listen" in arguments else ["--name", name]
    result = typed(["serve", "--json", *chosen, *arguments])
    assert result.status in (1, 2)
    assert result.out == ""
    assert said in result.err


def test_limits(serve: Serve, typed: Typed, started: Started) -> None:
    host = serve("--load", "echo=builtin:identity", "--max-models", "1", "--max-bytes", "1M", "--max-clients", "1")
    at = ["--host", host.name]
    assert "QuotaExceeded: 1 model versions are loaded" in typed(["load", "more", "builtin:sum", *at]).err
    big = ["infer", "echo", "--fill", "ones", "--dtype", "x=uint8", "--shape", "x=2000000", *at]
    refused = typed(big)
    assert refused.err.startswith("QuotaExceeded: ")
    assert "1048576" in refused.err
    watcher = started("stat", "--json", "--watch", "--interval", "20ms", *at)
    assert watcher.stdout is not None
    assert watcher.stdout.readline()
    assert typed(["ls", *at]).err.startswith("QuotaExceeded: 1 clients are connected")


def test_repository(serve: Serve, typed: Typed, tmp_path: Path, mlp: Path) -> None:
    repository = tmp_path / "models"
    for folder in ("mlp", "many/2", "many/10", "empty"):
        (repository / folder).mkdir(parents=True)
    for folder in ("mlp", "many/2", "many/10"):
        shutil.copy(mlp, repository / folder / "model.onnx")
    (repository / "outside").symlink_to(tmp_path)
    shutil.copy(mlp, tmp_path / "model.onnx")
    host = serve("--repository", str(repository), "--load", "mlp")
    assert host.ready["models"] == ["mlp"]
    at = ["--host", host.name]
    assert typed(["load", "many", "--json", *at]).json["version"] == 10
    assert typed(["load", "many", "--version", "2", "--json", *at]).json["version"] == 2
    assert "no version 3" in typed(["load", "many", "--version", "3", *at]).err
    assert "neither" in typed(["load", "empty", *at]).err
    assert "no folder of that name" in typed(["load", "none", *at]).err
    for leaving in ("../model.onnx", "outside/model.onnx", str(tmp_path / "model.onnx"), "mlp/../../model.onnx"):
        refused = typed(["load", "x", leaving, *at])
        assert refused.status == 1
        assert "leaves the model repository" in refused.err
    assert "leaves the model repository" in typed(["load", "outside", *at]).err
