"""`teal doctor` as typed: the table, the JSON object, the exit status."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from teal.cli.doctor import command
from teal.host import doctor
from teal.host.doctor import Check, Status

LONG = "echo advise | sudo tee " + "/very/long/path" * 20
PASSED = Check("cores", Status.PASS, "2 usable (0-1)", "Two are needed.")
CAUTIOUS = Check("thp", Status.CAUTION, "shared memory: [never]", "Pages are small.", LONG)
FAILED = Check("peer identity", Status.FAIL, "SO_PEERCRED fails (EPERM)", "Nobody can be let in.")


def run(monkeypatch: pytest.MonkeyPatch, checks: tuple[Check, ...], *arguments: str) -> tuple[int, str, list[bool]]:
    asked: list[bool] = []

    def examine(*, quick: bool, progress: doctor.Progress) -> tuple[Check, ...]:
        asked.append(quick)
        progress("jitter floor, one second")
        return checks

    monkeypatch.setattr(doctor, "examine", examine)
    result = CliRunner().invoke(command, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, asked


def test_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, (PASSED,))[0] == 0
    assert run(monkeypatch, (PASSED, CAUTIOUS))[0] == 0
    assert run(monkeypatch, (PASSED, FAILED, CAUTIOUS))[0] == 1
    assert run(monkeypatch, (FAILED,), "--json")[0] == 1


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    _, output, asked = run(monkeypatch, (PASSED, CAUTIOUS, FAILED))
    assert asked == [False]
    assert "shared memory: [never]" in output  # brackets are text, not markup
    assert f"  $ {LONG}\n" in output  # in one piece, whatever the width of the terminal
    assert "Pages are small." in output
    assert "Two are needed." not in output  # what passes needs no reasons
    assert output.count("no command fixes this") == 1
    assert output.endswith("1 PASS, 1 CAUTION, 1 FAIL\n")


def test_json_is_one_object_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    _, output, asked = run(monkeypatch, (PASSED, CAUTIOUS), "--json", "--quick")
    assert asked == [True]
    document = json.loads(output)
    assert document["status"] == "CAUTION"
    assert document["counts"] == {"PASS": 1, "CAUTION": 1, "FAIL": 0}
    assert document["checks"][1] == {
        "name": "thp", "status": "CAUTION", "found": "shared memory: [never]", "why": "Pages are small.", "fix": LONG,
    }  # fmt: skip
    assert document["checks"][0]["fix"] is None


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert "teal doctor --quick --json" in result.output


def test_unknown_option_is_refused() -> None:
    assert CliRunner().invoke(command, ["--fast"]).exit_code == 2


def test_for_real() -> None:
    """The jitter measurement included, on whatever machine this is."""
    result = CliRunner().invoke(command, ["--json"])
    document = json.loads(result.stdout)
    assert document["checks"][-1]["name"] == "jitter"
    assert result.exit_code == (1 if document["status"] == "FAIL" else 0)
