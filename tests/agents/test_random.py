"""A policy that decides at random in a pool with random settings, and clients that do at random what clients may:
answers are right, nothing is lost, and in the end the host has what it had before.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agents_fixtures import odd, until

import teal

Check = Callable[[Any], bool]
Waiting = list[tuple[Any, Check]]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Client:
    """Sends at random; each request has an answer that only it has."""

    def __init__(self, host: teal.Host, chance: random.Random) -> None:
        concurrency = chance.choice((None, 1))
        self._chance = chance
        self._echo = host.load("echo", "builtin:identity", concurrency=concurrency)
        self._spin = host.load("spin", "builtin:spin")
        self._twice = host.load("twice", "agents_kernels:twice")
        assert (np.asarray(self._echo(np.zeros(4))) == 0).all()
        assert int(self._spin(np.int64(1))[0].numpy()) >= 1000
        assert not np.asarray(self._twice(np.zeros((1, 4), np.int64))).any()

    def send(self, i: int, **options: Any) -> tuple[Any, Check]:
        match self._chance.randrange(4):
            case 0:
                long = self._chance.choice((10, 100, 400))
                return self._spin.submit(np.int64(long), **options), lambda answer: int(answer) >= 1000 * long
            case 1:
                rows = np.full((self._chance.randint(1, 3), 4), i)
                return self._twice.submit(rows, **options), lambda answer: np.array_equal(answer, rows * 2)
            case _:
                return self._echo.submit(np.full(4, i), **options), lambda answer: bool((answer == i).all())


@pytest.mark.parametrize(("seed", "batch", "quantum"), [(1, 1, 0), (2, 8, 0), (3, 1, "50us"), (4, 8, "50us")])
def test_random_decisions_and_random_clients(seed: int, batch: int, quantum: str | int) -> None:
    chance = random.Random(seed)
    with teal.Host(f"agents-{uuid.uuid4().hex[:12]}", workers=2, batch=batch, quantum=quantum) as host:
        client = Client(host, chance)
        host.agents.start("default", odd("Whimsical", seed=seed), max_wait="10s")
        before: int | None = None
        waiting: Waiting = []
        for i in range(500):
            if i in (200, 400):
                host.agents.upgrade("default", odd("Whimsical", seed=seed + i))
                _settle(waiting)
                before = before or _descriptors()
            match chance.randrange(12):
                case 0 if waiting:
                    waiting[chance.randrange(len(waiting))][0].cancel()
                case 1:
                    waiting.append(client.send(i, deadline=chance.choice((1e-6, 1e-3, 10.0))))
                case _:
                    waiting.append(client.send(i))
            if len(waiting) > 24:
                _settle(waiting)
        _settle(waiting)
        # On a machine that is too busy its heart may be missed; then it is back by itself.
        fell = [line.why for line in host.agents.audit() if line.what == "fallback"]
        assert all("heart" in why for why in fell)
        until(lambda: host.agents["default"].state == "online")
        assert before is not None
        numbers = {name: host.model(name).statistics() for name in ("spin", "twice")}
        assert (numbers["twice"].runs_together > 0) == (batch > 1)
        assert numbers["spin"].preemptions > 0
        until(lambda: _descriptors() <= before)


def _settle(waiting: Waiting) -> None:
    """Each with its own answer, or ended as it was asked to."""
    while waiting:
        future, is_right = waiting.pop()
        try:
            answer = future.result()
        except (teal.Cancelled, teal.DeadlineExceeded):
            continue
        assert is_right(answer[0].numpy())
