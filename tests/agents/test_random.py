"""A policy that decides at random, and clients that do at random what clients may: answers are right, nothing is
lost, and in the end the host has what it had before.
"""

from __future__ import annotations

import os
import random
import uuid
from typing import Any

import numpy as np
import pytest
from agents_fixtures import odd, until

import teal


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("seed", [1, 2])
def test_random_decisions_and_random_clients(seed: int) -> None:
    chance = random.Random(seed)
    with teal.Host(f"agents-{uuid.uuid4().hex[:12]}", workers=2) as host:
        model = host.load("echo", "builtin:identity", concurrency=chance.choice((None, 1)))
        assert (np.asarray(model(np.zeros(4))) == 0).all()
        host.agents.start("default", odd("Whimsical", seed=seed), max_wait="10s")
        before = _descriptors()
        waiting: list[tuple[int, Any]] = []
        for i in range(500):
            if i in (200, 400):
                host.agents.upgrade("default", odd("Whimsical", seed=seed + i))
            match chance.randrange(12):
                case 0 if waiting:
                    waiting[chance.randrange(len(waiting))][1].cancel()
                case 1:
                    waiting.append((i, model.submit(np.full(4, i), deadline=chance.choice((1e-6, 1e-3, 10.0)))))
                case _:
                    waiting.append((i, model.submit(np.full(4, i))))
            if len(waiting) > 24:
                _settle(waiting)
        _settle(waiting)
        # On a machine that is too busy its heart may be missed; then it is back by itself.
        fell = [line.why for line in host.agents.audit() if line.what == "fallback"]
        assert all("heart" in why for why in fell)
        until(lambda: host.agents["default"].state == "online")
        until(lambda: _descriptors() <= before)


def _settle(waiting: list[tuple[int, Any]]) -> None:
    """Each with its own answer, or ended as it was asked to."""
    while waiting:
        i, future = waiting.pop()
        try:
            answer = future.result()
        except (teal.Cancelled, teal.DeadlineExceeded):
            continue
        assert (np.asarray(answer) == i).all()
