"""The audit: one line each, bounded, and nothing an agent says can forge another."""

from __future__ import annotations

import logging

import pytest

from teal.host.audit import Audit, printable


def test_a_line_says_who_why_and_how_long(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(clock=lambda: 12.5)
    with caplog.at_level(logging.INFO, "teal.host.audit"):
        audit.note("fallback", ("default",), "fifo", 42, "signal 9 SIGKILL", 1.25, bad=True, again_in_s=0.1)
    (line,) = audit.lines()
    assert (line["at"], line["what"], line["pid"], line["seconds"]) == (12.5, "fallback", 42, 1.25)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "agent fifo (process 42) of default: fallback after 1.25 s: signal 9 SIGKILL again_in_s=0.1")
    ]


def test_the_last_ones_are_kept() -> None:
    audit = Audit()
    for i in range(1000):
        audit.note("changed", ("a" if i % 2 else "b",), "fifo", i)
    assert audit.total == 1000
    assert [line["pid"] for line in audit.lines()] == list(range(744, 1000))
    assert all(line["pools"] == ("a",) for line in audit.lines("a"))


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31mred", "a\r\nWARNING forged", "x" * 10_000, "\u202edrow"])
def test_what_an_agent_says_stays_one_short_line(text: str) -> None:
    shown = printable(text)
    assert len(shown) <= 400
    assert shown.isprintable()
