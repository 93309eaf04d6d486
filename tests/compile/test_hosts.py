"""Which host a graph lives at, and what happens when it goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import teal
import teal.compile

Compile = Callable[..., Any]

EMBEDDED = """
import os, torch, teal.compile
fast = torch.compile(lambda x: x * 2, backend="teal", options={"compile": False, "fallback": "error"})
assert fast(torch.ones(3)).tolist() == [2, 2, 2]
from teal.compile import hosts
host = hosts.find(None)
print(host.embedded, host.address)
child = os.fork()
if child == 0:
    result = fast(torch.ones(3)).tolist()
    os._exit(0 if result == [2, 2, 2] and hosts.find(None) is not host else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), fast(torch.ones(3)).tolist())
"""


def run(program: str, **environment: str) -> list[str]:
    known = {name: value for name, value in os.environ.items() if name != "TEAL_HOST"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**known, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_one_is_embedded_where_none_runs_and_a_fork_has_its_own() -> None:
    first, second = run(EMBEDDED)
    assert first.startswith("True @teal/")
    assert second == "0 [2.0, 2.0, 2.0]"


def test_the_environment_names_one(host: teal.Host) -> None:
    assert run(EMBEDDED.split("child =")[0], TEAL_HOST=host.address) == [f"False {host.address}"]


def test_a_host_that_is_not_there(compiled: Compile) -> None:
    with pytest.raises(teal.NotFound):
        compiled(lambda x: x + 1, host="@teal/nobody/here")(torch.ones(2))
    fast = compiled(lambda x: x + 1, host="@teal/nobody/here", fallback="eager")
    assert fast(torch.ones(2)).tolist() == [2, 2]
    assert any("NotFound" in reason for reason in teal.compile.statistics().fallbacks)


def test_a_host_that_dies(caplog: pytest.LogCaptureFixture) -> None:
    """The call that meets its death is answered here; the next one finds the host that came after it."""
    serve = [sys.executable, "-c", "from teal.cli import main; main()", "serve", "--listen"]
    path = f"@teal-test-{os.getpid()}"
    first = started([*serve, path])
    try:
        torch._dynamo.reset()
        options = {"host": path, "compile": False, "fallback": "eager"}
        fast = torch.compile(lambda x: x * 3, backend="teal", options=options)
        assert fast(torch.ones(2)).tolist() == [3, 3]
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert fast(torch.ones(2)).tolist() == [3, 3]
        assert "next one looks for a host" in caplog.text
        second = started([*serve, path])
        try:
            before = teal.compile.statistics()
            assert fast(torch.ones(2)).tolist() == [3, 3]
            assert teal.compile.statistics().loaded == before.loaded + 1
        finally:
            second.kill()
            second.wait()
    finally:
        first.kill()
        first.wait()


def started(command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_worker_that_dies(compiled: Compile, host: teal.Host) -> None:
    fast = compiled(lambda x: x * 4)
    assert fast(torch.ones(2)).tolist() == [4, 4]
    os.kill(host.statistics().workers[0].pid, signal.SIGKILL)
    assert fast(torch.ones(2)).tolist() == [4, 4]
