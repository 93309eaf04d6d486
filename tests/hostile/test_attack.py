"""A hostile client: nobody else's answer is wrong, no process dies of it, nothing stays behind.

Promise: no byte from a client can crash the host or a worker, or read or write more than the client's own memory.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import watch
from attacker import Attacker
from attacks import ATTACKS
from crash_host import CrashHost
from nursery import Nursery
from witness import load_all, watching

import teal

ROUNDS = {  # of each attack, so that all take about as long
    "random_bytes": 30,
    "wrong_types": 30,
    "wild_numbers": 10,
    "talk_without_listening": 4,
    "stray_descriptors": 15,
    "ask_and_leave": 60,
    "same_region_twice": 15,
    "scribble": 5,
    "wild_entries": 12,
    "lying_descriptors": 15,
    "lying_strings": 10,
    "lying_chains": 10,
    "racing_descriptors": 4,
    "flood": 4,
    "poisoned_numbers": 6,
    "lying_files": 4,
}


def held(host: CrashHost) -> Any:
    return (watch.descriptors(host.pid), watch.shared(host.pid), [watch.holdings(pid) for pid in host.workers()])


def quiet(attached: teal.Host, clients: int) -> bool:
    statistics = attached.statistics()
    return len(statistics.clients) == clients and statistics.active == 0 and statistics.queued == 0


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(
    name: str, hosts: Callable[..., CrashHost], nursery: Nursery, model_file: Path, dice: random.Random,
    rounds: Callable[[int], int], tmp_path: Path,
) -> None:  # fmt: skip
    host = hosts(workers=2, limits={"bytes": 8 << 20})
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    attached.load("strings", "hostile_kernels:lengths")
    with watching(host.address):
        pass
    watch.until(lambda: quiet(attached, 1), "the end of the witness's session")
    before = watch.steady(lambda: held(host))
    workers = host.workers()
    with watching(host.address) as witness:
        done = tmp_path / "done"
        seed = dice.getrandbits(32)
        attacker = nursery.start(
            "attack", address=host.address, name=name, seed=seed, rounds=rounds(ROUNDS[name]), done=str(done)
        )
        while not attacker.ended():
            witness.goes_on()
        assert done.exists(), "the attack itself failed: see its traceback"
        witness.goes_on()
    watch.until(lambda: quiet(attached, 1), "the end of the attacker's sessions")
    assert host.process.poll() is None
    assert host.workers() == workers, "a worker died of the attack"
    assert attached.statistics().restarts == 0
    for info in attached.models():
        assert not info.name.startswith("lie"), f"{info.name} was loaded"
    watch.settled(before, lambda: held(host), "what host and workers hold")
    attached.close()


def test_new_worker_beside_scribbled_headers(
    hosts: Callable[..., CrashHost], nursery: Nursery, model_file: Path
) -> None:
    """Whoever replaces a worker maps every client's memory anew, whatever the client has written over its headers."""
    host = hosts(workers=1)
    attached = teal.connect(host.address)
    load_all(attached, model_file)

    def died(name: str, error: teal.TealError) -> bool:
        return name == "cube" and isinstance(error, teal.PeerDied)

    with watching(host.address, may_fail=died) as witness, Attacker(host.address) as attacker:
        attacker.enter()
        attacker.memory[: 4096 + 192] = b"\xff" * (4096 + 192)
        attacker.regions[attacker.region][:4096] = b"\xff" * 4096
        attacker.describe(8192, [attacker.tensor(16384)], [attacker.tensor(20480)])
        os.kill(host.workers()[0], signal.SIGKILL)
        watch.until(lambda: attached.statistics().restarts == 1, "the death of the worker")
        witness.goes_on()
        model = attacker.ask("lookup", name="identity")[0]["index"]
        assert attacker.call(model, offset=8192) == (4, 0)
        witness.goes_on()
    assert attached.statistics().restarts == 1
    attached.close()


def test_host_memory_does_not_grow(
    hosts: Callable[..., CrashHost], nursery: Nursery, dice: random.Random, tmp_path: Path
) -> None:
    """Attack after attack through the socket and the statistics: the host's own memory stays what it is."""
    host = hosts(workers=1, limits={"bytes": 8 << 20})
    attached = teal.connect(host.address)
    for name in ("identity", "sum", "square", "affine", "count", "strings"):
        attached.load(name, "builtin:identity")

    def attack(rounds: int) -> int:
        for name in ("poisoned_numbers", "wrong_types", "talk_without_listening", "wild_numbers", "ask_and_leave"):
            done, seed = tmp_path / name, dice.getrandbits(32)
            child = nursery.start("attack", address=host.address, name=name, seed=seed, rounds=rounds, done=str(done))
            watch.until(child.ended, f"the end of {name}")
            assert done.exists()
        watch.until(lambda: quiet(attached, 1), "the end of the attacker's sessions")
        return int(Path(f"/proc/{host.pid}/statm").read_text().split()[5]) * resource.getpagesize()  # data and stack

    attack(5)
    before = attack(5)
    after = attack(25)
    assert after - before < 24 << 20, f"the host grew from {before >> 20} to {after >> 20} MiB"
    assert attached.statistics().clients
    attached.close()
