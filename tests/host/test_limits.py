"""Limits: what a client may use, and the numbers in what it is told."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

MIB = 1 << 20
KERNELS = str(Path(__file__).parents[1] / "kernel")


@pytest.fixture(scope="module")
def small() -> Iterator[teal.Host]:
    """A host that gives little."""
    with teal.Host(
        limits=teal.Limits(bytes=8 * MIB, slots=16, in_flight=4, models=6, clients=2, model_bytes=100_000)
    ) as host:
        yield host


@pytest.fixture
def identity(small: teal.Host) -> Iterator[teal.Model]:
    yield small.load("identity", "builtin:identity")
    gc.collect()
    small.unload("identity")


def test_defaults() -> None:
    limits = teal.Limits()
    assert limits.bytes > 0
    assert (limits.in_flight, limits.slots, limits.models, limits.clients) == (1024, 1024, 128, 256)


@pytest.mark.parametrize("name", ["bytes", "in_flight", "slots", "models", "clients", "model_bytes"])
@pytest.mark.parametrize("value", [-1, 1 << 60, 1.5, "many", None])
def test_limits_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(
        teal.InvalidArgument, match=rf"\$\.limits\.{name}: .*, expected (a whole number from )?\d+ to \d+"
    ):
        teal.Limits(**{name: value})


def test_bytes(identity: teal.Model) -> None:
    with pytest.raises(
        teal.QuotaExceeded, match=r"\d+ more bytes of shared memory: this client has \d+ of its 8388608"
    ):
        identity(np.zeros(9 * MIB, np.uint8))
    kept = [identity(np.zeros(MIB, np.uint8))[0] for _ in range(3)]
    with pytest.raises(teal.QuotaExceeded, match=r"8388608; release tensors, or raise Limits\.bytes"):
        kept.extend(identity(np.zeros(MIB, np.uint8))[0] for _ in range(10))
    kept.clear()
    gc.collect()
    assert identity(np.zeros(3 * MIB, np.uint8))[0].shape == (3 * MIB,)


def test_idle_memory_of_other_shapes_makes_room(identity: teal.Model) -> None:
    """What calls leave behind for the next ones of their shape is not counted against calls of another."""
    for n in range(1, 40):
        assert identity(np.full(n * 100_000 % (3 * MIB), n, np.uint8))[0].numpy()[0] == n
    for n in range(1, 6):
        x = identity.new_inputs(x=("uint8", (n * MIB // 2,)))
        assert identity(**x)[0].shape == (n * MIB // 2,)


def test_idle_memory_of_other_models_makes_room(small: teal.Host, identity: teal.Model) -> None:
    total = small.load("sum", "builtin:sum")
    for _ in range(3):
        assert identity(np.zeros(4 * MIB, np.uint8))[0].nbytes == 4 * MIB
        assert float(total(np.ones(MIB, np.float32))[0].numpy()) == MIB
        assert small.empty((5 * MIB,), "uint8").nbytes == 5 * MIB
    small.unload("sum")


def test_slots(identity: teal.Model) -> None:
    for n in range(1, 60):  # shapes that were used before do not keep slots from new ones
        identity(np.zeros(n, np.uint8))
    kept = []
    full = r"all 16 slots of this session are on loan; release tensors, or raise Limits\.slots"
    with pytest.raises(teal.QuotaExceeded, match=full):
        kept.extend(identity(np.zeros(5, np.uint8)) for _ in range(17))
    assert len(kept) == 16
    x = None
    with pytest.raises(teal.QuotaExceeded, match="all 16 slots"):
        x = identity.new_inputs(x=("uint8", (3,)))
    assert x is None
    kept.pop()
    assert identity(np.zeros(7, np.uint8))[0].shape == (7,)


def test_slots_of_siblings(small: teal.Host) -> None:
    total = small.load("sum", "builtin:sum")
    x = total.new_inputs(x=(2,))
    x["x"].numpy()[...] = 1
    kept = []
    with pytest.raises(teal.QuotaExceeded, match="all 16 slots"):
        kept.extend(total(**x) for _ in range(17))
    assert len(kept) == 16
    assert all(float(out[0].numpy()) == 2 for out in kept)
    kept.clear()
    assert float(total(**x)[0].numpy()) == 2
    del x
    small.unload("sum")


def test_in_flight_waits_and_loses_nothing(small: teal.Host, tmp_path: Path) -> None:
    model = small.load("gate", "toy_kernels:gate")
    futures = [model.submit(str(tmp_path / "open"), i) for i in range(12)]
    while small.statistics().active < 4:
        pass
    assert small.statistics().active == 4  # the others wait in the client's ring
    (tmp_path / "open").touch()
    assert [int(future.result()[0].numpy()) for future in futures] == list(range(12))
    small.unload("gate")


def test_models(small: teal.Host) -> None:
    for i in range(6):
        small.load(f"m{i}", "builtin:sum")
    with pytest.raises(teal.QuotaExceeded, match=r"6 model versions are loaded.*Limits\.models"):
        small.load("m6", "builtin:sum")
    with pytest.raises(teal.QuotaExceeded, match=r"Limits\.models"):
        small.load("m0", "builtin:sum", version=7)
    for i in range(6):
        small.unload(f"m{i}")
    small.load("m6", "builtin:sum").unload()


def test_model_bytes(small: teal.Host, mlp_path: Path, tmp_path: Path) -> None:
    small.load("mlp", mlp_path).unload()
    big = tmp_path / "big.onnx"
    big.write_bytes(bytes(100_001))
    with pytest.raises(teal.InvalidArgument, match=r"100001 bytes, expected at most 100000 \(Limits.model_bytes\)"):
        small.load("big", big)


def test_clients(small: teal.Host) -> None:
    second = teal.connect(small.address)
    with pytest.raises(
        teal.QuotaExceeded, match=r"2 clients are connected, the most this host takes \(Limits.clients\)"
    ):
        teal.connect(small.address)
    second.close()
    while True:  # the host hears of it in its own time
        try:
            teal.connect(small.address).close()
            break
        except teal.QuotaExceeded:
            continue


def test_spilled_outputs_count(small: teal.Host) -> None:
    model = small.load("sized", "toy_kernels:sized")
    with pytest.raises(teal.QuotaExceeded, match="an output does not fit this client's quota of 8388608 bytes"):
        model(3 * MIB)
    assert model(MIB // 4)["big"].size == MIB // 4
    small.unload("sized")


def test_spilled_outputs_count_until_they_are_let_go() -> None:
    """1 MiB each under 8 MiB, by handles that have not learned the size, so that each comes in a region of its own."""
    held: list[Any] = []
    with teal.Host(limits=teal.Limits(bytes=8 * MIB)) as own:
        own.load("sized", "toy_kernels:sized")

        def spilled() -> None:
            held.append(own.model("sized")(MIB // 4)["big"].numpy())

        def many() -> None:
            for _ in range(8):
                spilled()

        with pytest.raises(teal.QuotaExceeded, match="an output does not fit this client's quota of 8388608 bytes"):
            many()
        assert 5 <= len(held) < 8
        most = own.statistics().clients[0].bytes
        assert most > len(held) * MIB
        for _ in range(20):  # as many as one likes, when they are let go
            held.pop(0)
            spilled()
        count = len(held)
        held.clear()
        while own.statistics().clients[0].bytes > most - count * MIB:  # the host hears of it in its own time
            pass


def test_many_spilled_outputs_take_few_descriptors() -> None:
    program = (
        "import os, teal\n"
        "with teal.Host(limits=teal.Limits(slots=2000)) as host, teal.connect(host.address) as client:\n"
        "    before = len(os.listdir('/proc/self/fd'))\n"
        "    model = client.load('sized', 'toy_kernels:sized')\n"
        "    futures = [model.submit(2000 + i) for i in range(500)]\n"
        "    held = [future.result()['big'] for future in futures]\n"
        "    assert [tensor.shape[0] for tensor in held] == [2000 + i for i in range(500)]\n"
        "    assert len(os.listdir('/proc/self/fd')) < before + 200\n"
        "    most = max(c.bytes for c in host.statistics().clients)\n"
        "    del held, futures\n"
        "    while max(c.bytes for c in host.statistics().clients) > most - 500 * 8000: pass\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": KERNELS})


def test_descriptors_are_raised_to_what_the_host_may_have() -> None:
    program = (
        "import resource, teal\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "with teal.Host() as host:\n"
        "    assert host.statistics().descriptors == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "    worker = host.statistics().workers[0].pid\n"
        "    assert resource.prlimit(worker, resource.RLIMIT_NOFILE) == (hard, hard)\n"
        "    tensors = [host.empty((1 << 18,), 'uint8') for _ in range(200)]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_each_client_has_its_own(small: teal.Host, identity: teal.Model) -> None:
    other = teal.connect(small.address)
    kept = [identity(np.zeros(MIB, np.uint8))[0] for _ in range(3)]
    mine = other.model("identity")(np.zeros(4 * MIB, np.uint8))[0]
    assert mine.nbytes == 4 * MIB
    assert len(kept) == 3
    other.close()
