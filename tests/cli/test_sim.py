"""`teal sim`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from teal.cli import group

FORGETFUL = """
from teal.agents import Policy

class Forgetful(Policy):
    def pick(self, worker):
        return None
"""


def run(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(group, ["sim", *words])
    assert done.exit_code == status, (done.output, done.exception)
    return done.stdout


def test_policies_side_by_side(tmp_path: Path) -> None:
    plot = tmp_path / "load.svg"
    words = ("--compare", "fifo", "shinjuku:quantum=50us", "--workers", "4", "--requests", "3000", "--plot", str(plot))
    said = run(*words)
    assert said.count("short") == 2
    assert "preempted" in said
    assert plot.read_text().startswith("<svg")
    found = json.loads(run(*words, "--json"))
    assert [each["policy"] for each in found] == ["fifo", "shinjuku:quantum=50us"]
    again = json.loads(run(*words, "--json"))
    assert [each["fingerprint"] for each in again] == [each["fingerprint"] for each in found]


def test_what_is_asked_for_and_what_breaks(tmp_path: Path) -> None:
    words = ("edf", "--type", "a:mean=20us,spread=exponential,deadline=1ms", "--faults", "all", "--requests", "2000")
    (found,) = json.loads(run(*words, "--with", "link=1us", "--with", "ring=64", "--seed", "3", "--json"))
    assert [each["name"] for each in found["types"]] == ["a"]
    assert sum(found["met"].values()) > 0
    trace = tmp_path / "t.csv"
    trace.write_text("at,type,service\n0,x,5us\n1e-5,y,7us\n")
    (found,) = json.loads(run("--policy", "fifo", "--trace", str(trace), "--json"))
    assert {each["name"]: each["done"] for each in found["types"]} == {"x": 1, "y": 1}


def test_a_hunt_finds_the_seeds_that_fail(tmp_path: Path) -> None:
    assert "0 failed" in run("fifo", "--seeds", "1-40")
    mine = tmp_path / "mine.py"
    mine.write_text(FORGETFUL)
    assert "breach" in run(f"{mine}:Forgetful", "--seeds", "1-20", status=1)
    (found,) = json.loads(run(f"{mine}:Forgetful", "--seeds", "1-20", "--json", status=1))
    assert found["failed"]
    (again,) = json.loads(run(f"{mine}:Forgetful", "--seeds", str(found["failed"][0]["seed"]), "--json", status=1))
    assert again["failed"][0]["fingerprint"] == found["failed"][0]["fingerprint"]


@pytest.mark.parametrize(
    "words",
    [
        ("fifo", "--seeds", "5-1"),
        ("fifo", "--seeds", "x"),
        ("fifo", "--with", "types=1"),
        ("fifo", "--with", "ring"),
    ],
)
def test_usage_errors(words: tuple[str, ...]) -> None:
    run(*words, status=2)


def test_errors_are_teals() -> None:
    from teal.errors import InvalidArgument

    for words in (
        ("fifo", "--load", "0"),
        ("fifo", "--faults", "rain=1"),
        ("fifo", "--type", "a:mean=fast"),
        ("lifo",),
    ):
        assert isinstance(CliRunner().invoke(group, ["sim", *words]).exception, InvalidArgument), words
