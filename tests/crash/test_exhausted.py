"""Nothing left: of a quota, of the machine's memory, of descriptors. Errors have the numbers; the others go on."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import watch
from crash_host import CrashHost, unused_name
from witness import load_all, watching

import teal


def until_full(take: Callable[[], Any]) -> teal.QuotaExceeded:
    """Takes until there is no more, and returns how that was said."""
    try:
        while True:
            take()
    except teal.QuotaExceeded as error:
        return error


def numbers(error: BaseException) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(error))]


def test_bytes_of_a_client(hosts: Callable[..., CrashHost]) -> None:
    limit = 4 << 20
    host = hosts(limits={"bytes": limit})
    with teal.connect(host.address) as attached:
        identity = attached.load("identity", "builtin:identity")
        with pytest.raises(teal.QuotaExceeded, match=r"release tensors, or raise Limits\.bytes") as caught:
            attached.empty((limit,), "uint8")
        assert limit in numbers(caught.value)
        held: list[Any] = []
        error = until_full(lambda: held.append(identity(np.zeros(100_000, np.uint8))))
        assert limit in numbers(error)
        assert len(held) >= 10
        with teal.connect(host.address) as other:  # everybody has his own
            x = np.arange(100_000.0)
            assert np.array_equal(other.model("identity")(x)[0].numpy(), x)
        held.clear()
        x = np.arange(150_000.0)  # what was given back serves other shapes too
        assert np.array_equal(identity(x)[0].numpy(), x)


def test_outputs_count_too(hosts: Callable[..., CrashHost]) -> None:
    limit = 1 << 20
    host = hosts(limits={"bytes": limit})
    with teal.connect(host.address) as attached:
        count = attached.load("count", "crash_kernels:count_up")
        with pytest.raises(teal.QuotaExceeded, match=rf"an output does not fit this client's quota of {limit} bytes"):
            count(np.int64(200_000))
        assert np.array_equal(count(np.int64(50_000))[0].numpy(), np.arange(50_000.0))


@pytest.mark.parametrize("size", [1 << 45, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 70])
def test_more_than_the_machine_has(size: int, hosts: Callable[..., CrashHost]) -> None:
    host = hosts(limits={"bytes": 1 << 46})
    with teal.connect(host.address) as attached:
        identity = attached.load("identity", "builtin:identity")
        with pytest.raises((teal.QuotaExceeded, teal.InvalidArgument)) as caught:
            attached.empty((size,), "uint8")
        assert max(numbers(caught.value)) >= 1 << 20, "the message has no numbers"
        with pytest.raises((teal.QuotaExceeded, teal.InvalidArgument)):
            identity.new_inputs(x=("float32", (size,)))
        with pytest.raises(teal.InvalidArgument):
            identity.new_inputs(x=("float32", (size, size)))
        assert float(identity(np.float64(3))[0].numpy()) == 3


def test_machine_is_full_says_how_much_is_left(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(limits={"bytes": 1 << 46})
    with teal.connect(host.address) as attached:
        with pytest.raises(teal.QuotaExceeded, match=r"only \d+ bytes are available on this machine") as caught:
            attached.empty((1 << 42,), "uint8")
        assert min(numbers(caught.value)) > 1 << 20


def test_slots(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(limits={"slots": 8})
    with teal.connect(host.address) as attached:
        identity = attached.load("identity", "builtin:identity")
        x = np.arange(4.0)
        held = [identity(x) for _ in range(8)]
        with pytest.raises(teal.QuotaExceeded, match="all 8 slots of this session are on loan") as caught:
            identity(x)
        assert "Limits.slots" in str(caught.value)
        held.pop()
        assert np.array_equal(identity(x)[0].numpy(), x)
        held.clear()
        for size in range(1, 40):  # more shapes than slots, one after the other
            assert identity(np.zeros(size))[0].shape == (size,)


def test_in_flight_waits_in_the_ring(hosts: Callable[..., CrashHost]) -> None:
    """More than a client may have under way is no error: it waits, and nobody else does."""
    host = hosts(limits={"in_flight": 4})
    with teal.connect(host.address) as attached, teal.connect(host.address) as other:
        sleep = attached.load("sleep", "builtin:sleep")
        futures = [sleep.submit(2_000) for _ in range(100)]
        watch.until(lambda: attached.statistics().active, "the first of them to run")
        assert all(client.in_flight <= 4 for client in attached.statistics().clients)
        assert int(other.model("sleep")(0)[0].numpy()) == 0
        assert not futures[-1].done()
        for future in futures:
            future.result()


def test_models(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(limits={"models": 3})
    with teal.connect(host.address) as attached:
        for i in range(3):
            attached.load(f"m{i}", "builtin:identity")
        with pytest.raises(teal.QuotaExceeded, match=r"3 model versions .* takes 3 \(Limits.models\); unload some"):
            attached.load("one-more", "builtin:identity")
        attached.unload("m0")
        attached.load("one-more", "builtin:identity")


def test_failed_loads_use_no_names_up(hosts: Callable[..., CrashHost]) -> None:
    """A pool knows 1,024 names in its life."""
    host = hosts()
    with teal.connect(host.address) as attached:
        for i in range(1100):
            with pytest.raises(teal.NotFound):
                attached.load(f"m{i}", "no_such_module:function")
        assert float(attached.load("good", "builtin:identity")(np.float64(3))[0].numpy()) == 3


def test_clients(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(limits={"clients": 3})
    clients = [teal.connect(host.address) for _ in range(3)]
    with pytest.raises(
        teal.QuotaExceeded, match=r"3 clients are connected, the most this host takes \(Limits.clients\)"
    ):
        teal.connect(host.address)
    clients.pop().close()
    clients.append(watch.until(lambda: attempt(host.address), "room for one more client"))
    for client in clients:
        client.close()


def attempt(address: str) -> teal.Host | None:
    try:
        return teal.connect(address)
    except teal.QuotaExceeded:
        return None


def test_model_file_too_large(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    host = hosts(limits={"model_bytes": 1000})
    file = tmp_path / "large.onnx"
    file.write_bytes(b"x" * 1001)
    with (
        teal.connect(host.address) as attached,
        pytest.raises(teal.InvalidArgument, match=r"1001 bytes, expected at most 1000 \(Limits.model_bytes\)"),
    ):
        attached.load("m", file)


def test_descriptors_of_the_host(hosts: Callable[..., CrashHost], model_file: Path) -> None:
    """One client takes region after region: refused with numbers, while others still come in and call."""
    host = hosts(workers=1)
    resource.prlimit(host.pid, resource.RLIMIT_NOFILE, (64, 64))
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    with watching(host.address):
        held: list[Any] = []
        error = until_full(lambda: held.append(attached.empty((1 << 20,), "uint8")))
        assert "of the 64 that the host's process may have open" in str(error)
        assert "ulimit -Hn" in str(error)
        with teal.connect(host.address) as other:
            other.load("affine", model_file)
            assert float(other.model("affine")(np.array([3.0]))[0].numpy()[0]) == 7
        crowd: list[teal.Host] = []
        assert "may have open" in str(until_full(lambda: crowd.append(teal.connect(host.address))))
        for client in crowd:
            client.close()
    held.clear()
    attached.close()
    again = watch.until(lambda: attempt(host.address), "room for a client")
    assert float(again.model("affine")(np.array([3.0]))[0].numpy()[0]) == 7
    again.close()


NO_MEMORY = """
import resource, sys
import teal
with teal.connect(sys.argv[1]) as host:
    model = host.model("identity")
    model(1.0)
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), size + (64 << 20)))
    try:
        host.empty((256 << 20,), "uint8")
    except teal.QuotaExceeded as error:
        print(error)
    assert float(model(3.0)[0].numpy()) == 3
"""


def test_address_space_of_the_client(hosts: Callable[..., CrashHost]) -> None:
    host = hosts()
    with teal.connect(host.address) as attached:
        attached.load("identity", "builtin:identity")
        output = subprocess.run(
            [sys.executable, "-c", NO_MEMORY, host.address], check=True, capture_output=True, text=True,
            env={"PYTHONPATH": ":".join(path for path in sys.path if path), "OPENBLAS_NUM_THREADS": "1"},
        ).stdout  # fmt: skip
        assert re.search(r"mapping \d+ bytes", output), output
        watch.until(lambda: len(attached.statistics().clients) == 1, "the end of the client's session")


def test_no_second_host_of_that_name() -> None:
    name = unused_name()
    with teal.Host(name) as host:
        with pytest.raises(
            teal.Busy, match=rf"a host listens at {re.escape(host.address)} already \(process \d+ of user \d+\)"
        ):
            teal.Host(name)
        assert float(host.load("identity", "builtin:identity")(3.0)[0].numpy()) == 3
