"""`teal link measure`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from teal import link
from teal.cli.link import command
from teal.errors import InvalidArgument


def test_no_delay_is_shorter_than_asked() -> None:
    done = CliRunner().invoke(command, ["measure", "pcie:read=900ns", "cxl", "-n", "50", "--json"])
    assert done.exit_code == 0, done.output
    links = {each["link"]: each["delays"] for each in json.loads(done.output)["links"]}
    assert list(links) == ["pcie:read=900ns,one_way=450ns", "cxl"]
    for delays in links.values():
        assert {"read, 64 bytes", "one_way", "kick, end to end"} <= {delay["name"] for delay in delays}
        for delay in delays:
            assert delay["n"] == 50
            assert delay["asked_ns"] <= delay["least_ns"] <= delay["p50_ns"] <= delay["p99_ns"]


def test_as_people_read_it() -> None:
    done = CliRunner().invoke(command, ["measure", "-n", "20"])
    assert done.exit_code == 0
    assert "pcie" in done.output
    assert "cxl" in done.output
    assert "asked" in done.output


def test_what_makes_no_sense_is_refused() -> None:
    assert CliRunner().invoke(command, ["measure", "-n", "0"]).exit_code == 2
    for text, words in (
        ("isa", "expected shm, pcie or cxl"),
        ("pcie:reed=1ns", "no such setting"),
        ("pcie:dma=2", "on or off"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            link.parse(text)


def test_a_link_in_words() -> None:
    parsed = link.parse("pcie:prefetch=off,polling=sleep,coalesce=8")
    assert (parsed.kind, parsed.polling, parsed.coalesce) == ("pcie", "sleep", 8)
    assert not parsed.tricks["prefetch"]
    assert parsed.tricks["batching"]
    assert parsed.figures["read"] == 750
    assert link.parse(parsed.text) == parsed
    assert link.parse("shm").is_plain_shm
    assert not link.parse("shm:pre_staging=off").is_plain_shm
