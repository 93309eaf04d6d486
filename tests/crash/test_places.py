"""Memory that a request used where it was, when one of the processes that map it dies."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable

import numpy as np
import pytest
import watch
from crash_host import CrashHost

import teal


@pytest.mark.crash
@pytest.mark.parametrize("how", ["signal:9", "segfault"])
def test_a_worker_dies_over_places(how: str, hosts: Callable[..., CrashHost]) -> None:
    """The caller hears of it, and may use the memory again at once; all of it goes back."""
    host = hosts()
    with teal.connect(host.address) as attached:
        model = attached.load("mortal", "crash_kernels:mortal")
        core = attached._connection.session("default").core
        x, y = attached.empty((1000,), "float64"), attached.empty((1000,), "float64")
        x.numpy()[...] = 21
        model(x, "", out=y)
        for _ in range(3):
            before = attached.statistics().workers[0].pid
            with pytest.raises(teal.PeerDied):
                model(x, how, out=y)
            watch.until(lambda was=before: host.workers() not in ([], [was]), "the next worker")
            y.numpy()[...] = 0
            assert model(x, "", out=y)[0] is y
            assert np.all(y.numpy() == 42)
        waiting = [model.submit(x, "") for _ in range(5)]
        assert all(np.all(future.result()[0].numpy() == 42) for future in waiting)
        del x, y, waiting, model
        attached.unload("mortal")
        gc.collect()
        assert core.bytes_used == 0
        assert core.slots_out == 0


@pytest.mark.crash
def test_the_host_dies_over_places(hosts: Callable[..., CrashHost]) -> None:
    host = hosts()
    attached = teal.connect(host.address)
    attached.load("sleep", "builtin:sleep")
    model = attached.model("sleep")
    x, y = attached.empty((), "int64"), attached.empty((), "int64")
    x.numpy()[...] = 10_000_000
    future = model.submit(x, out=y)
    os.kill(host.pid, signal.SIGKILL)
    with pytest.raises(teal.PeerDied):
        future.result()
    with pytest.raises((teal.PeerDied, teal.Busy)):  # nobody let go of them, and nobody will
        model(x, out=y)
    assert int(x.numpy()) == 10_000_000
    del future, x, y
    attached.close()
