"""`teal duck classic …` and `teal duck serve --classic` as they are typed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import teal
from teal.cli import duck_classic, group
from teal.duck import cc
from teal.duck.classic import benchset
from teal.duck.classic.run import KEYS

EXAMPLES = Path(__file__).parents[2] / "examples" / "duck"


def typed(*words: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(group, ["duck", "classic", *map(str, words)], input=stdin)


def said(*words: str | Path, stdin: bytes = b"") -> Any:
    result = typed(*words, "--json", stdin=stdin)
    assert result.exit_code == 0, f"{result.exception}\n{result.output}"
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """A duck as `teal duck serve --classic` makes it."""
    command = [sys.executable, "-c", "from teal.cli import main; main()", "duck", "serve", "--json", "--cache", "none",
               "--name", f"classic-{os.getpid()}", "--memory", "2G", "--classic", "127.0.0.1:0"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["classic"]
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    target = tmp_path_factory.mktemp("classic") / "duckinfo.elf"
    cc.compile_program(EXAMPLES / "duckinfo.c", target, abi="duckinfo")
    return target


def test_every_command_has_help_with_an_example_and_json() -> None:
    for command in duck_classic._COMMANDS:
        help_text = typed(command, "--help").output
        assert f"teal duck classic {command}" in help_text.partition("Example")[2]
        assert "--json" in help_text
    assert "no authentication" in " ".join(CliRunner().invoke(group, ["duck", "serve", "--help"]).output.split())


def test_judge(host: str, program: Path, tmp_path: Path) -> None:
    found = said("judge", program, "--host", host, stdin=b"1 2 3")
    assert set(KEYS) <= set(found)
    assert (found["status"], found["stdout"], found["return-code"]) == ("Run Finished", "6\n", 0)
    (tmp_path / "in").write_text("40 2")
    again = said(
        "judge", program, "--host", host, "--stdin", tmp_path / "in", "--ob", "4096", "--ob-file", tmp_path / "ob"
    )
    assert (again["stdout"], again["cache-hits"]) == ("42\n", 1)
    assert (tmp_path / "ob").read_bytes() == bytes(4096)
    assert "Run Finished" in typed("judge", program, "--host", host, stdin=b"1").output
    (tmp_path / "no.elf").write_text("no program")
    failed = typed("judge", tmp_path / "no.elf", "--host", host)
    assert failed.exit_code == 1
    assert "Judge Failed: Can't load ELF" in failed.output


def test_info(host: str) -> None:
    found = said("info", "--host", host, "--log", "1200")
    assert found["buffer-size"] == str(192 << 20)
    assert found["caches"]["elf"]["most_objects"] == 1000
    assert "classic" in found["log"]
    assert "cpu-model-name" in typed("info", "--host", host).output


def test_benchset(host: str, program: Path) -> None:
    found = said("benchset", "--host", host, "--scale", "0.001", "--repeats", "2")
    assert [row["name"] for row in found["rows"]] == [load.name for load in benchset.LOADS]
    for row in found["rows"]:
        assert row["runs"] == 2
        assert 0 < row["min_ms"] <= row["mean_ms"] <= row["max_ms"]
        assert row["stddev_ms"] >= 0
        assert row["answer"].isdecimal()
    table = typed("benchset", "--only", "loops", "--scale", "0.001", "--repeats", "2").output  # a duck of its own
    assert "stddev" in table
    assert "loops" in table
    with pytest.raises(teal.NotFound, match="no row begins with"):
        CliRunner().invoke(
            group, ["duck", "classic", "benchset", "--host", host, "--only", "x"], catch_exceptions=False
        )


def test_serve_refuses_what_others_could_reach() -> None:
    with pytest.raises(teal.InvalidArgument, match="no authentication"):
        CliRunner().invoke(group, ["duck", "serve", "--name", f"no-{os.getpid()}", "--classic", "0.0.0.0:0"],
                           catch_exceptions=False)  # fmt: skip
