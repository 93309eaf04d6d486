"""Gangs of a policy: several workers begin together, or none does."""

from __future__ import annotations

from agents_fixtures import odd, right, until

import teal
from teal.agents import Policy, parse_policy


def test_pairs_begin_together(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("Pairs"), max_wait="60s")
    right(echo, 200)
    seat = agent_host.agents["default"].seats["default"]
    assert seat.groups > 0
    assert seat.bugs == 0
    assert seat.errors == 0
    assert seat.completed + seat.local == 200
    assert agent_host.agents["default"].state == "online"
    # Members that were refused came back to the policy with their reason, and ran later.
    said = agent_host.agents.dump("default")
    assert ("POISONED" in said or "TIMEOUT" in said) == (seat.groups_refused > 0), said


def test_one_worker_makes_no_gang() -> None:
    with teal.Host(workers=1) as host:
        echo = host.load("echo", "builtin:identity")
        host.agents.start("default", odd("Pairs"), max_wait="30ms")
        right(echo, 20)  # it never decides, and is put off
        assert until(lambda: [line for line in host.agents.audit() if line.what == "fallback"])


def test_a_gang_that_makes_no_sense_is_an_error() -> None:
    policy = parse_policy(odd("Pairs"))
    assert policy.name == "plain"
    assert Policy().pick_group([]) is None
