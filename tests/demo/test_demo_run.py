"""`teal demo` from end to end on the test double: what it prints, what it says when something fails, what it leaves."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from teal.demo.outcome import Question
from teal.demo.run import check, default_text
from teal.demo.text import read
from teal.errors import InvalidArgument

Start = Callable[..., "subprocess.Popen[str]"]


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Standard output and error of a process that has ended."""
    return process.communicate()


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_finds_the_passage_and_measures(on_double: Start, story: Path) -> None:
    process = on_double("--text", str(story), "--ask", "Who has to mend the roof?", "--top", "2", "--json")
    out, err = ended(process)
    assert (process.returncode, err) == (0, "")
    record: dict[str, Any] = json.loads(out)
    assert len(record["answers"]) == 2
    assert record["answers"][0]["heading"] == "House"
    assert record["answers"][0]["line"] == 3
    assert record["answers"][0]["score"] > record["answers"][1]["score"]
    assert len({client["pid"] for client in record["clients"]}) == 2
    assert sum(client["passages"] for client in record["clients"]) == record["text"]["passages"] == 3
    assert [way["name"] for way in record["ways"]] == ["teal", "in_process", "http"]
    assert all(way["times"]["n"] == 4 for way in record["ways"])
    assert all(way["max_abs_difference"] == 0 for way in record["ways"])
    assert record["same"] is True
    assert record["client_difference"] == 0
    assert list(record["stages"]) == ["tokenise", "fill", "queue", "run", "copy", "wake", "call", "pool", "all"]
    assert record["stages"]["all"]["n"] == 3 + 2  # every passage, and the question once in each client
    assert {"machine", "versions"} <= set(record)


def test_prints_passages_first_and_progress_apart(on_double: Start, story: Path) -> None:
    process = on_double("--text", str(story), "--ask", "When do ships sail?")
    out, err = ended(process)
    assert process.returncode == 0
    assert (
        out.index("story.md:7") < out.index("Where the time went") < out.index("three ways") < out.index("Same answers")
    )
    assert re.search(r"client 1 \(process \d+\): \d+ of 2", err)
    assert "\x1b" not in out + err  # no colours off a terminal


def test_answers_that_differ_are_shouted(on_double: Start, story: Path) -> None:
    process = on_double("--text", str(story), fault="differ")
    out, _ = ended(process)
    assert process.returncode == 1
    assert "THE ANSWERS DIFFER" in out


@pytest.mark.parametrize(
    ("fault", "said"), [("refuse", r"client \d: Closed: the host is shutting down"), ("die", "ended by SIGKILL")]
)
def test_a_process_that_fails_is_one_line(on_double: Start, tmp_path: Path, fault: str, said: str) -> None:
    text = tmp_path / "long.md"
    text.write_text("".join(f"# Part {number}\n\nwords of part {number}\n\n" for number in range(20)))
    process = on_double("--text", str(text), fault=fault)
    _, err = ended(process)
    assert process.returncode == 1
    assert re.search(rf"^Error: .*{said}", err, re.MULTILINE)
    assert "Traceback" not in err


@pytest.mark.crash
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_its_children_go_when_it_goes(on_double: Start, tmp_path: Path, sent: signal.Signals) -> None:
    text = tmp_path / "long.md"
    text.write_text("".join(f"# Part {number}\n\nwords of part {number}\n\n" for number in range(900)))
    process = on_double("--text", str(text), "--passages", "900")
    assert process.stderr is not None
    pids: set[int] = set()
    while len(pids) < 2:
        line = process.stderr.readline()
        assert line
        pids |= {int(pid) for pid in re.findall(r"client \d \(process (\d+)\)", line)}
    process.send_signal(sent)
    process.communicate()
    assert process.returncode != 0
    while any(alive(pid) for pid in pids):
        time.sleep(0.01)


@pytest.mark.parametrize("ask", ["", "   ", "?!", "\x1b\x00"])
def test_a_question_of_no_words(ask: str) -> None:
    with pytest.raises(InvalidArgument, match="question is empty"):
        check(Question(ask, ()))


def test_a_question_that_is_a_book() -> None:
    with pytest.raises(InvalidArgument, match="ask it shorter"):
        check(Question("word " * 9000, ()))
    assert check(Question(" who\n pays \udcff? ", ())).ask == "who pays ??"


def test_there_is_always_a_default_text() -> None:
    assert len(read(default_text()).passages) > 10
    shipped = Path(default_text.__code__.co_filename).parent / "data"
    assert len(read([str(shipped)]).passages) > 10
