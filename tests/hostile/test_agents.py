"""Agents that flood their desk, repeat themselves, or want everything to leave: answers are right, nothing is lost, and
the host has afterwards what it had before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import watch
from crash_host import CrashHost
from witness import load_all, watching

import teal

LIARS = Path(__file__).parent / "liars.py"


def at_rest(host: CrashHost) -> watch.Holdings:
    return watch.steady(lambda: watch.holdings(host.pid))


@pytest.mark.parametrize("policy", ["Floods", "RepeatsItself", "ForgesAsks"])
def test_a_liar_changes_no_answer(policy: str, hosts: Callable[..., CrashHost], model_file: Path) -> None:
    host = hosts(workers=2)
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    spin = attached.load("spin", "builtin:spin")
    patience = {"heartbeat": "30s", "max_wait": "1s", "come_back": 0}
    attached.agents.start("default", "fifo", **patience)

    def spins() -> None:
        futures = [spin.submit(np.int64(300)) for _ in range(20)]
        assert all(int(future.result()[0].numpy()) >= 300_000 for future in futures)

    with watching(host.address) as witness:
        spins()
        witness.goes_on()
        before = at_rest(host)
        attached.agents.upgrade("default", f"{LIARS}:{policy}", **patience)
        for _ in range(3):
            spins()
            witness.goes_on()
        if policy == "ForgesAsks":  # an agent may ask for what it likes; what makes no sense is counted
            seat = attached.agents["default"].seats["default"]
            while not min(seat.asked, seat.asks_in_vain):  # its own asks are often written over by its lies
                spins()
                seat = attached.agents["default"].seats["default"]
            seen = attached.agents["default"]
            assert (seen.state, seen.restarts) == ("online", 0)
        else:
            fell = [line.why for line in attached.agents.audit() if line.what == "fallback"]
            assert all("waited" in why or "made no sense" in why for why in fell)
            assert fell
        attached.agents.upgrade("default", "fifo", **patience)
        witness.goes_on()
        watch.settled(before, lambda: watch.holdings(host.pid), "the host")
    assert attached.statistics().restarts == 0  # no worker minded
    assert attached.agents["default"].seats["default"].bugs == 0
    attached.close()
