"""What docs/agents.md has people type works, typed as it is written, in its order."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from teal.cli import group

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
_SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^<!-- file: (.+?) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sessions() -> list[list[str]]:
    """The commands of each console block; the first one is a `teal serve` in the background."""
    return [re.findall(r"^\$ teal (.*)$", block, re.MULTILINE) for block in _SESSION.findall(PAGE.read_text())]


@contextlib.contextmanager
def served(line: str, folder: Path) -> Iterator[str]:
    """That `teal serve`, under a name of its own, until the block is over; Ctrl-C ends it."""
    name = f"page-{uuid.uuid4().hex[:12]}"
    arguments = [*shlex.split(line.removesuffix("&")), "--name", name]
    command = [sys.executable, "-c", "from teal.cli import main; main()", *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert "is ready" in process.stdout.readline()
        try:
            yield name
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0


@pytest.mark.parametrize("session", sessions(), ids=lambda session: session[0][:40])
def test_session(session: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in _FILE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    serve, *typed = session
    assert serve.startswith("serve ")
    assert serve.endswith("&")
    assert typed
    monkeypatch.chdir(tmp_path)
    with served(serve, tmp_path) as host:
        monkeypatch.setenv("TEAL_HOST", f"@teal/{os.getuid()}/{host}")
        for line in typed:
            said = CliRunner().invoke(group, shlex.split(line))
            while "it is being started again" in str(said.exception):  # its machine was too busy for its heart
                time.sleep(0.1)
                said = CliRunner().invoke(group, shlex.split(line))
            assert said.exit_code == 0, f"teal {line}: {said.exception}\n{said.output}"
            assert said.output, line
