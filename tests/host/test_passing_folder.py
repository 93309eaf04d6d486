from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from teal.host.passing_folder import PassingFolder

OWNER = """
import signal, sys
from teal.host.passing_folder import PassingFolder
made = PassingFolder("teal-test-")
print(made.path, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, here and in children."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def owner() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_it_is_ours_alone_until_it_is_closed() -> None:
    made = PassingFolder("teal-test-")
    (made.path / "file").write_text("x")
    assert made.path.stat().st_mode & 0o777 == 0o700
    made.close()
    assert not made.path.exists()


def test_that_of_a_process_that_was_killed_goes_when_the_next_one_is_made(temporary: Path) -> None:
    process, path = owner()
    (path / "file").write_text("x")
    end(process)
    assert path.exists()
    PassingFolder("teal-other-").close()
    assert path.exists()
    made = PassingFolder("teal-test-")
    assert list(temporary.iterdir()) == [made.path]
    made.close()


def test_that_of_a_process_that_lives_stays() -> None:
    process, path = owner()
    try:
        PassingFolder("teal-test-").close()
        assert path.is_dir()
    finally:
        end(process)


def test_a_forked_child_does_not_take_it_away() -> None:
    made = PassingFolder("teal-test-")
    pid = os.fork()
    if pid == 0:
        made.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert made.path.is_dir()
    made.close()
    assert not made.path.exists()


def test_a_link_is_left_alone(temporary: Path) -> None:
    target = temporary / "other"
    target.mkdir()
    (temporary / "teal-test-link").symlink_to(target)
    PassingFolder("teal-test-").close()
    assert target.is_dir()
