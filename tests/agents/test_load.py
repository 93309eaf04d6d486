"""How an agent waits and rings: chosen by load, or set while it runs, and counted."""

from __future__ import annotations

import pytest
from agents_fixtures import right, until

import teal
from teal.host.agent_view import SeatStatistics


def seat_of(host: teal.Host) -> SeatStatistics:
    return host.agents["default"].seats["default"]


def test_settings_of_the_loop_change_while_it_serves(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", "shinjuku:quantum=1ms,poll=sleep")
    right(echo, 50)
    for poll in ("spin", "30us", "adaptive", "sleep"):
        now = agent_host.agents.set("default", poll=poll, coalesce="20us")
        assert (now["poll"], now["coalesce"], now["quantum"]) == (poll, "20us", "1ms")
        right(echo, 50)
    for wrong in ({"poll": "often"}, {"coalesce": "1s"}):
        with pytest.raises(teal.InvalidArgument, match=next(iter(wrong))):
            agent_host.agents.set("default", **wrong)
    assert agent_host.agents["default"].state == "online"
    assert agent_host.agents.set("default", coalesce="off")["poll"] == "sleep"
    right(echo, 50)
    with pytest.raises(teal.InvalidArgument, match="poll"):
        agent_host.agents.upgrade("default", "fifo:poll=often")
    assert agent_host.agents["default"].policies[0].startswith("shinjuku")


def test_waits_and_rings_are_counted(agent_host: teal.Host, echo: teal.Model) -> None:
    agent_host.agents.start("default", "fifo:poll=sleep")
    for i in range(20):
        right(echo, 1, i)
    asleep = until(lambda: (s := seat_of(agent_host)).sleeps and s)
    assert asleep.spins == 0
    right(echo, 400)
    seat = until(lambda: (s := seat_of(agent_host)).rings + s.rings_spared >= s.decisions and s)
    assert seat.rings_spared > 0  # of many at once most find their worker awake, or rung
    assert seat.batched >= 2 * seat.batches
    agent_host.agents.set("default", poll="spin")
    sleeps = seat_of(agent_host).sleeps
    right(echo, 200)
    assert seat_of(agent_host).sleeps <= sleeps + 1
    until(lambda: seat_of(agent_host).spins > 0)


def test_a_quantum_that_no_worker_can_keep_to_is_refused(agent_host: teal.Host) -> None:
    with pytest.raises(teal.InvalidArgument, match="20us at the earliest"):
        agent_host.agents.start("default", "shinjuku:quantum=5us")
    agent_host.agents.start("default", "shinjuku:quantum=20us")
    with pytest.raises(teal.InvalidArgument, match="20us at the earliest"):
        agent_host.agents.set("default", quantum="19us")
    assert agent_host.agents.set("default", quantum="40us")["quantum"] == "40us"
