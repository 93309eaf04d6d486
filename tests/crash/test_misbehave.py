"""Function kernels that raise, return nonsense, hang: the caller hears what it was, the others go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import watch
from crash_host import CrashHost
from witness import load_all, watching

import teal


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "m: ValueError: on purpose"),
        ("nothing", "returned None for output 'pid'"),
        ("text", "strings|BYTES"),
        ("shape", r"rank|\(3, 3\)|shape"),
        ("dtype", "float32"),
        ("object", "object"),
        ("many", "tuple|rank 1"),
    ],
)
def test_nonsense(how: str, message: str, hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=1)
    with teal.connect(host.address) as attached:
        model = attached.load("m", "crash_kernels:misbehave")
        pid = int(model(how="work")[0].numpy())
        with pytest.raises((teal.KernelFailed, teal.InvalidArgument), match=message):
            model(how=how)
        assert int(model(how="work")[0].numpy()) == pid
        assert model.statistics().failed == 1


def test_hang_with_a_deadline(hosts: Callable[..., CrashHost]) -> None:
    """One worker hangs for ever: its caller's deadline fires, the other worker serves everybody."""
    host = hosts(workers=2)
    with teal.connect(host.address) as attached:
        hang = attached.load("hang", "crash_kernels:misbehave")
        square = attached.load("square", "crash_kernels:square")
        with pytest.raises(teal.DeadlineExceeded):
            hang(how="hang", deadline=0.05)
        for value in range(100):
            assert float(square(np.array([float(value)]))[0].numpy()[0]) == value**2
        assert attached.statistics().restarts == 0
        states = [worker.state for worker in attached.statistics().workers]
        assert states.count("running") == 1


def test_everybody_hangs(hosts: Callable[..., CrashHost]) -> None:
    """No worker is left: whoever set a deadline gets it, whoever did not waits until one is free."""
    host = hosts(workers=2)
    with teal.connect(host.address) as attached:
        hang = attached.load("hang", "crash_kernels:misbehave")
        square = attached.load("square", "crash_kernels:square")
        square(np.array([1.0]))
        stuck = [hang.submit(how="hang") for _ in range(2)]
        watch.until(lambda: all(w.state == "running" for w in attached.statistics().workers), "two busy workers")
        with pytest.raises(teal.DeadlineExceeded):
            square(np.array([2.0]), deadline=0.05)
        patient = square.submit(np.array([3.0]))
        cancelled = square.submit(np.array([4.0]))
        assert cancelled.cancel()
        with pytest.raises(TimeoutError):
            patient.result(timeout=0.05)
        os.kill(host.workers()[0], signal.SIGKILL)
        assert float(patient.result()[0].numpy()[0]) == 9
        assert sum(future.done() for future in stuck) == 1
        with pytest.raises(teal.PeerDied, match="signal 9 SIGKILL while it ran 'hang'"):
            next(future for future in stuck if future.done()).result()


def test_host_with_a_hanging_kernel_stops(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=1)
    attached = teal.connect(host.address)
    hang = attached.load("hang", "crash_kernels:misbehave")
    stuck = hang.submit(how="hang")
    watch.until(lambda: attached.statistics().workers[0].state == "running", "a busy worker")
    workers = host.workers()
    attached.stop(drain=True, timeout=0.1)
    assert host.process.wait(watch.PATIENCE) == 0
    assert not any(watch.alive(pid) for pid in workers)
    with pytest.raises(teal.TealError):
        stuck.result()


def test_unload_of_a_hanging_model_does_not_stop_the_others(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=2)
    with teal.connect(host.address) as attached:
        hang = attached.load("hang", "crash_kernels:misbehave")
        square = attached.load("square", "crash_kernels:square")
        stuck = hang.submit(how="hang")
        watch.until(lambda: any(w.state == "running" for w in attached.statistics().workers), "a busy worker")
        other = teal.connect(host.address)
        failed: list[BaseException] = []

        def unload() -> None:
            try:
                other.unload("hang", force=True)
            except teal.TealError as error:
                failed.append(error)

        unloading = threading.Thread(target=unload)
        unloading.start()
        watch.until(lambda: [info.name for info in attached.models()] == ["square"], "the model's end")
        for value in range(50):
            assert float(square(np.array([float(value)]))[0].numpy()[0]) == value**2
        with pytest.raises(teal.NotFound):
            hang(how="work")
        busy = next(w.pid for w in attached.statistics().workers if w.state == "running")
        os.kill(busy, signal.SIGKILL)
        unloading.join()
        assert not failed
        with pytest.raises(teal.PeerDied):
            stuck.result()
        other.close()


CLOSER = '''
import os
def close_everything(x):
    """What a careless daemonising library does."""
    os.closerange(3, 1024)
    return x
'''


def test_kernel_that_closes_its_workers_descriptors(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    (tmp_path / "closer.py").write_text(CLOSER)
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parent), *(path for path in sys.path if path)])
    host = hosts(workers=1, environment={"PYTHONPATH": paths})
    with teal.connect(host.address) as attached:
        square = attached.load("square", "crash_kernels:square")
        closer = attached.load("closer", "closer:close_everything")
        try:
            closer(np.float64(3))
        except teal.PeerDied:
            pass
        assert float(square(np.array([3.0]))[0].numpy()[0]) == 9
        # It hears one more order, and then notices that it is deaf.
        with teal.connect(host.address) as other:
            assert float(other.model("square")(np.array([3.0]))[0].numpy()[0]) == 9
        watch.until(lambda: attached.statistics().restarts == 1, "a new worker")
        assert float(square(np.array([3.0]))[0].numpy()[0]) == 9


def test_answers_stay_right_beside_all_of_it(hosts: Callable[..., CrashHost], model_file: Path) -> None:
    host = hosts(workers=2)
    attached = teal.connect(host.address)
    load_all(attached, model_file)
    model: Any = attached.load("m", "crash_kernels:misbehave")

    def died(name: str, error: teal.TealError) -> bool:
        return name == "cube" and isinstance(error, teal.PeerDied)

    with watching(host.address, may_fail=died) as witness:
        for how in ("raise", "nothing", "exit:3", "shape", "signal:11", "text", "segfault", "object", "signal:6"):
            with pytest.raises(teal.TealError):
                model(how=how)
        witness.goes_on()
    attached.close()


def test_a_child_of_a_kernel_does_not_become_a_worker(hosts: Callable[..., CrashHost], tmp_path: Path) -> None:
    """It would take requests, know nothing of later versions, and stay when the host goes."""
    host = hosts(workers=1)
    with teal.connect(host.address) as attached:
        model = attached.load("m", "crash_kernels:misbehave")
        worker = attached.statistics().workers[0].pid
        for how in ("fork", "fork and raise"):
            assert int(model(how=how)[0].numpy()) == worker
            watch.until(lambda: not any(map(watch.alive, watch.children(worker))), "the child has ended")
        for _ in range(20):  # by the child each of these could be taken, and not be found
            attached.load("square", "crash_kernels:square")
            assert float(attached.model("square")(np.array([3.0]))[0].numpy()[0]) == 9
        attached.load("forks", "crash_kernels:ForksAtLoad")
        watch.until(lambda: not any(map(watch.alive, watch.children(worker))), "the child has ended")
        assert int(attached.model("forks")(0)[0].numpy()) == worker
        assert attached.statistics().restarts == 0


def test_the_host_hears_of_a_workers_end_beside_its_child(hosts: Callable[..., CrashHost]) -> None:
    host = hosts(workers=1)
    with teal.connect(host.address) as attached:
        child = int(attached.load("m", "crash_kernels:misbehave")(how="leave a child")[0].numpy())
        try:
            os.kill(attached.statistics().workers[0].pid, signal.SIGKILL)
            watch.until(lambda: attached.statistics().restarts == 1, "a new worker")
            assert float(attached.load("square", "crash_kernels:square")(np.array([3.0]))[0].numpy()[0]) == 9
        finally:
            os.kill(child, signal.SIGKILL)
