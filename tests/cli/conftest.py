"""Real hosts for the tests of the command line, each with a name of its own, and the command as typed."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from teal.cli import group
from teal.errors import TealError

TEAL = [sys.executable, "-c", "from teal.cli import main; main()"]
HERE = Path(__file__).parent


def environment() -> dict[str, str]:
    """This one, without a host chosen in it, and with the toys where workers find them."""
    chosen = {key: value for key, value in os.environ.items() if key != "TEAL_HOST"}
    paths = [str(HERE), *filter(None, [chosen.get("PYTHONPATH")])]
    return {**chosen, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


@dataclass
class Served:
    """A `teal serve` process that is ready, and what it said then."""

    process: subprocess.Popen[str]
    name: str
    ready: dict[str, Any]


@dataclass
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which must be one JSON value in one line."""
        assert self.status == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)


def unique() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def typed(line: str | list[str]) -> Said:
    """Runs a command in this process, as `teal` would: Teal's errors are one line on stderr and status 1."""
    arguments = shlex.split(line) if isinstance(line, str) else line
    result = CliRunner(env={"TEAL_HOST": None}).invoke(group, arguments)
    if isinstance(result.exception, TealError):
        return Said(1, result.stdout, f"{type(result.exception).__name__}: {result.exception}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)


def started(*arguments: str) -> subprocess.Popen[str]:
    """The same in a process of its own."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*TEAL, *arguments], stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, env=environment(), text=True
    )


@contextlib.contextmanager
def serving(*arguments: str, name: str | None = None) -> Iterator[Served]:
    name = name or unique()
    where = [] if "--listen" in arguments else ["--name", name]
    process = started("serve", *where, "--json", *arguments)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.fail(f"teal serve did not start: {process.communicate()[1]}")
        yield Served(process, name, json.loads(line))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts hosts, and ends them with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, name=None: stack.enter_context(serving(*arguments, name=name))


@pytest.fixture(scope="module")
def serve_all() -> Iterator[Callable[..., Served]]:
    """The same for all tests of a file."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, name=None: stack.enter_context(serving(*arguments, name=name))


@pytest.fixture(scope="session")
def shared() -> Iterator[str]:
    """A host for tests that do no more to it than load models under names of their own: its name."""
    models = (f"--load={model}" for model in ("echo=builtin:identity", "sum=builtin:sum", "sleep=builtin:sleep"))
    with serving(*models) as host:
        yield host.name


@pytest.fixture
def teal(shared: str) -> Callable[[str], Said]:
    """A command that talks to the shared host."""
    return lambda line: typed([*shlex.split(line), "--host", shared])


@pytest.fixture(name="typed")
def typed_fixture() -> Callable[[str | list[str]], Said]:
    return typed


@pytest.fixture(name="started")
def started_fixture() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Commands in processes of their own, which end with the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        processes.append(started(*arguments))
        return processes[-1]

    try:
        yield start
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture
def until_inside() -> Callable[..., None]:
    """Waits until the host has the requests of these calls, or until one of them has ended already."""

    def wait(host: str, *calls: subprocess.Popen[str]) -> None:
        while typed(["stat", "--json", "--host", host]).json["active"] < len(calls):
            if any(call.poll() is not None for call in calls):
                return
            time.sleep(0.01)

    return wait


@pytest.fixture
def name() -> str:
    """A name that no other test uses, of a host or of a model."""
    return unique()


@pytest.fixture(scope="session")
def mlp() -> Path:
    """A small ONNX model: x float32[batch, 64] → y float32[batch, 8]."""
    import teal.bench

    assert teal.bench.__file__ is not None
    return Path(teal.bench.__file__).parent / "data" / "mlp.onnx"
