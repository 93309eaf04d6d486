"""kill -9 of clients, anywhere in load, submit, run and read: nobody else notices, and nothing stays behind."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import watch
from crash_host import CrashHost
from nursery import Child, Nursery
from witness import load_all, watching

import teal


def held(host: CrashHost) -> Any:
    """What host and workers hold; threads of the host's executor come with use and stay."""
    of_host = watch.holdings(host.pid)
    return (of_host.descriptors, of_host.shared, [watch.holdings(pid) for pid in host.workers()])


def only_client(attached: teal.Host) -> bool:
    statistics = attached.statistics()
    return len(statistics.clients) <= 1 and statistics.active == 0 and statistics.queued == 0


def forget_theirs(attached: teal.Host) -> None:
    for info in attached.models():
        if info.name.startswith("theirs"):
            attached.unload(info.name, info.version, force=True)


@pytest.mark.crash
@pytest.mark.parametrize("part", range(4))
def test_killed_at_random(
    part: int,
    hosts: Callable[..., CrashHost],
    nursery: Nursery,
    model_file: Path,
    dice: random.Random,
    rounds: Callable[[int], int],
) -> None:
    host = hosts(workers=2)
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    for name in ("theirs-0", "theirs-1"):
        attached.load(name, model_file)
    forget_theirs(attached)
    workers = host.workers()
    with watching(host.address):
        pass
    watch.until(lambda: only_client(attached), "the end of the witness's session")
    before = watch.steady(lambda: held(host))
    with watching(host.address) as witness:
        victims: list[Child] = []
        for _ in range(rounds(50)):
            victims.append(
                nursery.start("client", address=host.address, seed=dice.getrandbits(32), model_file=str(model_file))
            )
            if len(victims) >= 3:
                time.sleep(dice.random() * 0.06)
                victims.pop(dice.randrange(len(victims))).kill()
        for victim in victims:
            victim.kill()
        witness.goes_on()
    watch.until(lambda: only_client(attached), "the end of the victims' sessions")
    forget_theirs(attached)
    watch.settled(before, lambda: held(host), "what host and workers hold")
    assert host.workers() == workers, "a worker died because a client did"
    attached.close()
