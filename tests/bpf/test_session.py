"""Requests from BPF programs: right answers, in the worker's pages, and what becomes of those that get none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from desk import CANCELLED, CLOSED, DONE, EXPIRED, FAILED, FULL, PENDING, STALE, Desk

import teal
from teal import bpf

Load = Callable[..., teal.Model]
OpenDesk = Callable[..., tuple[bpf.Session, Desk]]
MS = 1000  # microseconds


def eventually(holds: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_answers_are_right(load: Load, open_desk: OpenDesk) -> None:
    model = load("builtin:sum")
    session, desk = open_desk(model, slots=4, x=(2,))
    assert [desk.sum(value) for value in (0.0, 3.0, -8.5, 1e6)] == [0.0, 3.0, -8.5, 1e6]
    numbers = session.statistics()
    assert (numbers.sent, numbers.out, numbers.failed, numbers.full) == (4, 0, 0, 0)
    assert model.statistics().copies_in == 0


def test_bound_before_the_first_event(load: Load, open_desk: OpenDesk) -> None:
    model = load("builtin:sum")
    session, desk = open_desk(model, slots=8, x=(2,))
    before = model.statistics()
    assert (before.requests, before.bindings) == (8, 8)
    for _ in range(20):
        desk.sum(1.0)
    eventually(lambda: model.statistics().requests == 28)
    assert model.statistics().bindings == 8
    assert session.statistics().sent == 20


def test_stages_are_those_that_workers_saw(host: teal.Host, load: Load, open_desk: OpenDesk) -> None:
    """A program has no tick counter: the queue begins for it when a worker takes the entry."""
    model = load("builtin:sum")
    _, desk = open_desk(model, slots=1, x=(2,))
    for _ in range(5):
        desk.sum(1.0)
    eventually(lambda: model.statistics().requests == 6)  # the warm-up is one
    stages = model.statistics().stages
    assert (stages["queue"].count, stages["run"].count) == (6, 6)
    (theirs,) = [client.stages for client in host.statistics().clients if "queue" in client.stages]
    assert (theirs["queue"].count, theirs["run"].count) == (6, 6)
    assert 0 < theirs["run"].p50_us <= theirs["run"].max_us
    others = [client.stages for client in host.statistics().clients if "queue" not in client.stages]
    assert others
    assert all(set(seen) == {"copy", "wake", "total"} for seen in others)


def test_stat_shows_the_stages(host: teal.Host, load: Load, open_desk: OpenDesk) -> None:
    from click.testing import CliRunner

    from teal.cli import stat

    model = load("builtin:sum")
    _, desk = open_desk(model, slots=1, x=(2,))
    desk.sum(1.0)
    said = CliRunner().invoke(stat.command, ["--once", "--host", host.address]).output
    clients = said[said.index("client") :]
    assert "queue" in clients
    assert "run" in clients


def test_on_all_cpus_at_once(load: Load, open_desk: OpenDesk) -> None:
    model = load("builtin:sum")
    session, desk = open_desk(model, slots=64, x=(2,))
    right, wrong, refused = desk.events(threads=4, each=5000)
    assert wrong == 0
    assert right > 0
    numbers = session.statistics()
    assert numbers.sent == right + numbers.left
    assert refused == numbers.full + numbers.left
    eventually(lambda: model.statistics().requests == 64 + numbers.sent)


def test_no_slot_left_is_counted(load: Load, open_desk: OpenDesk) -> None:
    session, desk = open_desk(load("builtin:sum"), slots=2, x=(2,))
    assert [desk.step("take_one") for _ in range(4)] == [0, 0, FULL, FULL]
    assert (session.statistics().full, session.statistics().out) == (2, 2)


def test_a_dropped_slot_is_free_again(load: Load, open_desk: OpenDesk) -> None:
    session, desk = open_desk(load("builtin:sum"), slots=1, x=(2,))
    assert [desk.step("drop_one") for _ in range(3)] == [0, 0, 0]
    assert desk.sum(2.0) == 2.0
    assert session.statistics().out == 0


def test_a_handle_is_good_once(load: Load, open_desk: OpenDesk) -> None:
    _, desk = open_desk(load("builtin:sum"), slots=1, x=(2,))
    handle = desk.send(4.0)
    assert desk.finish(handle)[0] == DONE
    assert desk.step("poll_one", handle) == STALE
    assert desk.step("poll_one", 12345 << 32) == STALE


def test_left_before_it_ran(load: Load, open_desk: OpenDesk) -> None:
    model = load("builtin:sleep")
    session, desk = open_desk(model, slots=2)
    first, second = desk.send(200 * MS), desk.send(1)
    desk.step("leave_one", second)  # still waits behind the first
    assert desk.step("poll_one", second) == STALE
    assert desk.finish(first)[0] == DONE
    eventually(lambda: model.statistics().cancelled == 1)
    handles = [desk.send(1) for _ in range(2)]  # both slots are there
    assert [desk.finish(handle)[0] for handle in handles] == [DONE, DONE]
    assert session.statistics().left == 1


def test_left_while_it_runs(load: Load, open_desk: OpenDesk) -> None:
    """The slot is not given out again before the worker has let go of it."""
    _, desk = open_desk(load("builtin:sleep"), slots=1)
    handle = desk.send(300 * MS)
    time.sleep(0.05)
    desk.step("leave_one", handle)
    assert desk.send(1) == FULL
    until = time.monotonic() + 20
    while (again := desk.send(1)) == FULL and time.monotonic() < until:
        time.sleep(0.005)
    assert desk.finish(again)[0] == DONE


def test_deadline(load: Load, open_desk: OpenDesk) -> None:
    session, desk = open_desk(load("builtin:sleep"), slots=2)
    first, second = desk.send(200 * MS), desk.send(1, deadline=0.01)
    assert desk.finish(second)[0] == EXPIRED
    assert desk.finish(first)[0] == DONE
    assert session.statistics().failed == 1


def test_a_kernel_that_fails(load: Load, open_desk: OpenDesk) -> None:
    session, desk = open_desk(load("builtin:sleep"), slots=1)
    assert desk.finish(desk.send(-1))[0] == FAILED
    assert desk.finish(desk.send(1))[0] == DONE
    assert session.statistics().failed == 1


def test_an_unloaded_model(host: teal.Host, open_desk: OpenDesk) -> None:
    model = host.load("goes", "builtin:sum")
    _, desk = open_desk(model, slots=2, x=(2,))
    assert desk.sum(1.0) == 1.0
    host.unload("goes")
    assert desk.finish(desk.send(1.0))[0] == FAILED
    host.load("goes", "builtin:sum")
    assert desk.sum(3.0) == 3.0
    host.unload("goes")


def test_a_reload_under_a_session(load: Load, host: teal.Host, open_desk: OpenDesk) -> None:
    model = host.load("again", "builtin:sum")
    session, desk = open_desk(model, slots=2, x=(2,))
    host.load("again", "builtin:sum")
    assert [desk.sum(float(i)) for i in range(10)] == [float(i) for i in range(10)]
    assert session.statistics().failed == 0
    host.unload("again")


def test_a_sleeping_worker_is_woken(open_desk: OpenDesk) -> None:
    with teal.Host(idle=0) as host:
        model = host.load("sum", "builtin:sum")
        session, desk = open_desk(model, slots=2, x=(2,))
        for i in range(20):
            time.sleep(0.005)  # the worker goes to sleep
            assert desk.sum(float(i)) == float(i)
        assert session.statistics().bells > 0
        assert session.rung > 0
        session.close()


def test_programs_are_unloaded_while_a_request_is_out(load: Load, program: Path, open_desk: OpenDesk) -> None:
    """The next programs find the session as the last left it, requests under way included."""
    session, desk = open_desk(load("builtin:sleep"), slots=2)
    handle = desk.send(100 * MS)
    desk.close()
    again = Desk(program, session)
    assert session.statistics().out == 1
    assert again.finish(handle) == (DONE, 100 * MS)
    assert session.statistics().out == 0
    assert again.finish(again.send(1))[0] == DONE
    again.close()


def test_two_sets_of_programs_share_a_session(load: Load, program: Path, open_desk: OpenDesk) -> None:
    session, one = open_desk(load("builtin:sum"), slots=4, x=(2,))
    other = Desk(program, session)
    handles = [desk.send(float(i)) for i, desk in enumerate((one, other, one, other))]
    assert len(set(handles)) == 4
    assert [one.finish(handle)[0] for handle in handles] == [DONE] * 4
    other.close()


def test_a_closed_session_says_so_in_the_kernel(load: Load, open_desk: OpenDesk) -> None:
    session, desk = open_desk(load("builtin:sleep"), slots=2)
    running, waiting = desk.send(200 * MS), desk.send(1)
    session.close()
    session.close()
    assert desk.send(1) == CLOSED
    assert desk.finish(waiting)[0] == CANCELLED
    assert desk.finish(running)[0] in (DONE, PENDING)  # nobody waits for it any more
    with pytest.raises(teal.Closed, match="this BPF session is closed"):
        session.statistics()


def test_a_host_that_stops(open_desk: OpenDesk) -> None:
    with teal.Host() as host:
        _, desk = open_desk(host.load("sum", "builtin:sum"), slots=2, x=(2,))
        assert desk.sum(1.0) == 1.0
    assert desk.send(1.0) == CLOSED


def test_a_session_of_the_parent_in_a_forked_child(load: Load, open_desk: OpenDesk) -> None:
    session, desk = open_desk(load("builtin:sum"), slots=2, x=(2,))
    if (child := os.fork()) == 0:
        try:
            session.statistics()
        except teal.Closed:
            session.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert desk.sum(5.0) == 5.0


def test_several_sessions_of_one_client(load: Load, open_desk: OpenDesk) -> None:
    model = load("builtin:sum")
    pairs: list[Any] = [open_desk(model, slots=2, x=(2,)) for _ in range(3)]
    assert [desk.sum(float(i)) for i, (_, desk) in enumerate(pairs)] == [0.0, 1.0, 2.0]
    assert len({session.index for session, _ in pairs}) == 3
