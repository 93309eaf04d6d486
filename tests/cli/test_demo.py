"""The command `teal demo`: help, bad arguments, missing packages; and the real thing on Teal itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from teal.cli.demo import command


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert "Example: teal demo --text" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--text", "/no/such/file"], "cannot read /no/such/file"),
        (["--text", "/dev/null"], "no text to search in /dev/null"),
        (["--text", "/dev/zero"], "not text"),
        (["--ask", ""], "question is empty"),
        (["--top", "0"], "not in the range"),
        (["--passages", "-1"], "not in the range"),
    ],
)
def test_a_bad_argument_is_one_line(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else real(name, *rest)
    )
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 1
    assert result.output == "Error: teal demo needs onnxruntime: pip install 'teal-runtime[demo]'\n"


@pytest.mark.slow
def test_the_main_job_on_teal_itself(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    text = tmp_path / "a.md"
    text.write_text(
        "".join(f"# Room {n}\n\nRoom {n} holds {n} chairs and a table.\n\n" for n in range(40))
        + "# Roof\n\nThe landlord pays for every repair of the roof.\n"
    )
    result = CliRunner().invoke(command, ["--text", str(text), "--ask", "Who has to mend the roof?", "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["answers"][0]["heading"] == "Roof"
    assert record["same"] is True
    assert record["model"]["copies_in"] == record["model"]["copies_out"] == 0
    assert record["stages"]["run"]["n"] >= 41
    assert record["stages"]["call"]["p50_us"] >= record["stages"]["run"]["p50_us"]
    assert sum(client["overlapped"] for client in record["clients"]) > 0
