"""Child processes: faults named, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from teal.demo import crew as module
from teal.demo.crew import Crew
from teal.errors import DeadlineExceeded, TealError


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module whose program is the line it is sent."""
    (tmp_path / "obedient_child.py").write_text("import sys\nexec(sys.stdin.readline().replace(';;', '\\n'))\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "obedient_child"


def test_hears_events_and_ignores_other_lines(child: str) -> None:
    with Crew() as crew:
        one = crew.start("one", child)
        one.send("print('hello'); print('[1]'); print('{\"event\": \"ready\", \"n\": 3}')")
        heard, event = crew.hear("ready")
    assert heard is one
    assert event["n"] == 3
    assert one.process.returncode == 0


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", r"one \(process \d+\) ended by SIGSEGV"),
        ("sys.exit(3)", "ended with status 3"),
        ("raise ValueError('of its own')", "ValueError: of its own"),
        ('print(\'{"event": "error", "kind": "NotFound", "message": "no model"}\')', "one: NotFound: no model"),
    ],
)
def test_a_child_that_fails_is_named(child: str, program: str, said: str) -> None:
    with Crew() as crew:
        crew.start("one", child).send(program)
        with pytest.raises(TealError, match=said):
            crew.hear("done")


def test_a_child_that_is_done_may_end(child: str) -> None:
    with Crew() as crew:
        crew.start("one", child).send('print(\'{"event": "done"}\')')
        two = crew.start("two", child)
        crew.hear("done")
        crew._children[0].process.wait()
        two.send('print(\'{"event": "ready"}\')')
        assert crew.hear("ready")[0] is two


def test_silence_is_given_up_and_named(child: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.05)
    with Crew() as crew:
        crew.start("one", child)
        with pytest.raises(DeadlineExceeded, match="no word from one"):
            crew.hear("done")


def test_leaves_nothing_behind_that_does_not_want_to_end(child: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.05)
    with Crew() as crew:
        stubborn = crew.start("one", child)
        stubborn.send(
            "import time, signal;;signal.signal(15, signal.SIG_IGN)"
            ';;print(\'{"event": "ready"}\', flush=True);;time.sleep(600)'
        )
        crew.hear("ready")
    assert stubborn.process.returncode == -9


def test_the_folder_one_stands_in_provides_no_modules(
    child: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path / "here")
    with Crew() as crew:
        crew.start("one", child).send('import json; print(\'{"event": "done"}\')')
        crew.hear("done")
