"""Agents that are slow for a moment are taken back; those that stay away, or freeze again and again, are replaced."""

from __future__ import annotations

import os
import signal
import time

import pytest
from agents_fixtures import alive, odd, right, until

import teal


def whats(host: teal.Host) -> list[str]:
    return [line.what for line in host.agents.audit()]


def test_stopped_for_a_moment_it_is_taken_back(agent_host: teal.Host, echo: teal.Model) -> None:
    pid = agent_host.agents.start("default", "fifo", max_wait="10s", come_back="60s").pid
    right(echo, 20)
    os.kill(pid, signal.SIGSTOP)
    right(echo, 50, 20)  # the pool goes on by itself, once the heart is missed
    until(lambda: agent_host.agents["default"].state == "frozen")
    frozen = agent_host.agents["default"]
    assert "heart" in frozen.why
    assert frozen.pid == pid
    right(echo, 50, 70)
    os.kill(pid, signal.SIGCONT)
    agent = until(lambda: (a := agent_host.agents["default"]).state == "online" and a)
    assert (agent.pid, agent.restarts) == (pid, 0)
    assert agent.returns >= 1
    before = agent.seats["default"].completed
    right(echo, 100, 120)
    until(lambda: agent_host.agents["default"].seats["default"].rescans >= 2)
    assert agent_host.agents["default"].seats["default"].completed > before
    assert whats(agent_host)[:3] == ["online", "fallback", "returned"]
    fallback, returned = agent_host.agents.audit()[1:3]
    assert fallback.more["taken_back_within_s"] == 60.0
    assert "heart" in returned.why
    assert returned.more["away_s"] > 0


def test_a_method_that_takes_too_long_once(agent_host: teal.Host, echo: teal.Model) -> None:
    pid = agent_host.agents.start("default", odd("Naps"), max_wait="10s", come_back="60s").pid
    right(echo, 60)
    until(lambda: "returned" in whats(agent_host))
    right(echo, 60)
    agent = agent_host.agents["default"]
    assert (agent.pid, agent.restarts) == (pid, 0)
    assert agent.returns >= 1
    assert agent.fallbacks >= agent.returns


def test_how_long_is_for_its_host_to_say(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", odd("Naps"), max_wait="30s", heartbeat="30s")
    right(echo, 60)
    agent = agent_host.agents["default"]
    assert (agent.state, agent.returns, agent.fallbacks) == ("online", 0, 0)


def test_one_that_stays_away_is_replaced(agent_host: teal.Host, echo: teal.Model) -> None:
    pid = agent_host.agents.start("default", "fifo", max_wait="10s", come_back="100ms").pid
    os.kill(pid, signal.SIGSTOP)
    right(echo, 20)
    until(lambda: (a := agent_host.agents["default"]).state == "online" and a.pid != pid)
    until(lambda: not alive(pid))
    right(echo, 20)
    assert whats(agent_host) == ["online", "fallback", "gave up", "restart"]
    gave_up = agent_host.agents.audit()[2]
    assert "0.1 s" in gave_up.why
    assert gave_up.more["again_in_s"] == 0.1
    assert agent_host.agents["default"].fallbacks == 1


def test_one_that_freezes_again_and_again_is_replaced(agent_host: teal.Host, echo: teal.Model) -> None:
    pid = agent_host.agents.start("default", "fifo", max_wait="10s", come_back="60s").pid
    for i in range(6):
        os.kill(pid, signal.SIGSTOP)
        right(echo, 10)
        until(lambda i=i: whats(agent_host).count("fallback") == i + 1)
        if i < 5:
            os.kill(pid, signal.SIGCONT)
            until(lambda i=i: whats(agent_host).count("returned") == i + 1)
    until(lambda: "restart" in whats(agent_host))
    assert "5 times within a minute" in [line.why for line in agent_host.agents.audit() if line.what == "fallback"][-1]


def test_without_a_chance_it_is_replaced_at_once(agent_host: teal.Host, echo: teal.Model) -> None:
    pid = agent_host.agents.start("default", "fifo", max_wait="10s", come_back=0).pid
    os.kill(pid, signal.SIGSTOP)
    right(echo, 20)
    until(lambda: (a := agent_host.agents["default"]).state == "online" and a.pid != pid)
    assert whats(agent_host) == ["online", "fallback", "restart"]
    with pytest.raises(teal.InvalidArgument, match="come_back"):
        agent_host.agents.upgrade("default", come_back="soon")


def test_an_upgrade_need_not_wait_for_a_frozen_one(agent_host: teal.Host, echo: teal.Model) -> None:
    pid = agent_host.agents.start("default", "fifo", max_wait="10s", come_back="60s").pid
    os.kill(pid, signal.SIGSTOP)
    right(echo, 20)
    until(lambda: agent_host.agents["default"].state == "frozen")
    agent_host.agents.upgrade("default", "edf")
    until(lambda: not alive(pid))
    right(echo, 20)
    assert agent_host.agents["default"].state == "online"
    assert whats(agent_host) == ["online", "fallback", "upgraded"]


def test_with_nothing_to_do_nobody_minds_its_heart(agent_host: teal.Host, echo: teal.Model) -> None:
    pid = agent_host.agents.start("default", "fifo", max_wait="10s", come_back="60s").pid
    right(echo, 10)
    until(lambda: (s := agent_host.agents["default"].seats["default"]).queued == 0 and s.runnable == 0)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.2)  # four times what a heart may stand still while requests wait
    assert whats(agent_host) == ["online"]
    os.kill(pid, signal.SIGCONT)
    right(echo, 50)
    assert agent_host.agents["default"].pid == pid
