"""teal.Host() inside a program: what it takes, how it ends, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal


def alive(pid: int) -> bool:
    """Is the process there, and no zombie of ours?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before the read, or during it
        return False


def run(program: str, *arguments: str, status: int = 0) -> str:
    """The output of a Python program of its own."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout


def test_the_ordinary_way() -> None:
    with teal.Host() as host:
        assert host.embedded
        assert host.models() == []
        workers = host.statistics().workers
        assert [alive(worker.pid) for worker in workers] == [True]
        assert repr(host) == f"<teal.Host embedded at {host.address}, Teal {teal.__version__}>"
        assert float(host.load("sum", "builtin:sum")([1.0])[0].numpy()) == 1
    assert not any(alive(worker.pid) for worker in workers)
    assert "closed" in repr(host)
    host.close()  # again: nothing happens
    for use in (
        host.models,
        host.statistics,
        lambda: host.load("a", "builtin:sum"),
        lambda: host.model("sum"),
        lambda: host.unload("sum"),
    ):
        with pytest.raises(teal.Closed, match="the connection to the host is closed"):
            use()


def test_many_hosts_in_one_process() -> None:
    hosts = [teal.Host() for _ in range(3)]
    assert len({host.address for host in hosts}) == 3
    for i, host in enumerate(hosts):
        host.load("sum", "builtin:sum")
        host.empty((1,)).numpy()[0] = i
    for i, host in enumerate(hosts):
        assert float(host.model("sum")([float(i)])[0].numpy()) == i
        host.close()


def test_one_after_the_other_under_one_name() -> None:
    name = f"again-{os.getpid()}"
    for i in range(3):
        with teal.Host(name) as host:
            assert host.address == f"@teal/{os.getuid()}/{name}"
            assert float(host.load("sum", "builtin:sum")([float(i)])[0].numpy()) == i


def test_a_name_that_is_taken(host: teal.Host) -> None:
    name = host.address.rpartition("/")[2]
    with pytest.raises(
        teal.Busy, match=rf"a host listens at {host.address} already \(process {os.getpid()} of user {os.getuid()}\)"
    ):
        teal.Host(name)
    assert host.models() == []


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"name": "a/b"}, teal.InvalidArgument, "host name 'a/b'"),
        ({"name": ""}, teal.InvalidArgument, "host name ''"),
        ({"name": "x" * 65}, teal.InvalidArgument, "host name"),
        ({"workers": 0}, teal.InvalidArgument, r"\$\.workers: 0, expected 1 to"),
        ({"workers": 10_000}, teal.InvalidArgument, r"\$\.workers: 10000"),
        ({"threads": 0}, teal.InvalidArgument, r"\$\.threads: 0, expected 1 to 1024"),
        ({"idle": "soon"}, teal.InvalidArgument, r"\$\.idle: 'soon', expected a duration such as 200us"),
        ({"idle": -1}, teal.InvalidArgument, r"\$\.idle: -1, expected 0 to one hour"),
        ({"idle": "2 days"}, teal.InvalidArgument, r"\$\.idle"),
        ({"idle": float("nan")}, teal.InvalidArgument, r"\$\.idle"),
        ({"cores": [100_000]}, teal.InvalidArgument, r"\$\.cores: .*100000.*this process may use"),
        ({"cores": [-1]}, teal.InvalidArgument, r"\$\.cores"),
        ({"repository": "/nowhere/at/all"}, teal.InvalidArgument, r"\$\.repository: /nowhere/at/all: not a folder"),
        ({"unknown": 1}, TypeError, "unknown"),
        ({"workers": "two"}, teal.InvalidArgument, r"\$\.workers: 'two' is of type str, expected a whole number"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_options_that_are_none(options: dict[str, Any], error: Any, complaint: str) -> None:
    before = threading.active_count()
    with pytest.raises(error, match=complaint):
        teal.Host(**options)
    assert threading.active_count() <= before  # one of an earlier test may have been leaving


def test_an_isa_that_this_machine_has_not() -> None:
    program = "import teal\ntry:\n    teal.Host()\nexcept teal.InvalidArgument as error:\n    print(error)\n"
    for value in ("quantum", "amx9"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            env={**os.environ, "TEAL_ISA": value},
            capture_output=True,
            text=True,
        )
        assert done.stdout.startswith(f"TEAL_ISA={value!r} cannot be honoured: on this machine it may be one of "), done
        assert done.stderr == ""


@pytest.mark.parametrize("idle", ["0ns", "200us", "1.5ms", " 10 ms ", 0, 0.001, "µs".replace("µs", "3µs")])
def test_durations(idle: Any) -> None:
    from teal.host.duration import nanoseconds

    expected = {"0ns": 0, "200us": 200_000, "1.5ms": 1_500_000, " 10 ms ": 10**7, 0: 0, 0.001: 10**6, "3µs": 3000}
    assert nanoseconds(idle) == expected[idle]


def test_cores_and_threads(mlp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with teal.Host(cores=[core], threads=1, idle=0) as host:
        (worker,) = host.statistics().workers
        assert os.sched_getaffinity(worker.pid) == {core}
        assert host.load("mlp", mlp_path)(np.zeros((1, 64), np.float32))[0].shape == (1, 8)


def test_a_repository(tmp_path: Path, mlp_path: Path) -> None:
    model = mlp_path.read_bytes()
    for path in ("plain/model.onnx", "numbered/3/model.onnx", "numbered/12/model.onnx", "empty/readme"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(model)
    (tmp_path / "out").symlink_to(mlp_path.parent)
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "model.onnx").symlink_to(mlp_path)
    x = np.zeros((1, 64), np.float32)
    with teal.Host(repository=tmp_path) as host:
        assert host.load("plain")(x)[0].shape == (1, 8)
        assert host.load("numbered").version == 12
        assert host.load("numbered", version=3).version == 3
        assert host.load("again", "plain/model.onnx")(x)[0].shape == (1, 8)
        for name, error, complaint in (
            ("nothing", teal.NotFound, "no folder of that name"),
            ("empty", teal.NotFound, "neither empty/model.onnx nor empty/<number>/model.onnx"),
            ("away", teal.InvalidArgument, "leaves the model repository"),
            ("out", teal.InvalidArgument, "leaves the model repository"),
        ):
            with pytest.raises(error, match=complaint):
                host.load(name)
        for source in ("../model.onnx", str(mlp_path), "away/model.onnx", "out/mlp.onnx"):
            with pytest.raises((teal.InvalidArgument, teal.NotFound)):
                host.load("outside", source)
        with pytest.raises(teal.NotFound, match=r"no version 4 .*\[3, 12\]"):
            host.load("numbered", version=4)
    with (
        teal.Host() as host,
        pytest.raises(teal.InvalidArgument, match="no source given, and this host has no model repository"),
    ):
        host.load("plain")


def test_an_error_in_the_block_ends_the_host_too() -> None:
    pids: list[int] = []

    def fails() -> None:
        with teal.Host() as host:
            pids.extend(worker.pid for worker in host.statistics().workers)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert [alive(pid) for pid in pids] == [False]


def test_a_host_that_nobody_keeps_ends() -> None:
    host = teal.Host()
    (worker,) = host.statistics().workers
    model = host.load("sum", "builtin:sum")
    del host
    gc.collect()
    assert float(model([2.0])[0].numpy()) == 2  # the model keeps it
    assert alive(worker.pid)
    del model
    gc.collect()
    assert not alive(worker.pid)


FORGETFUL = """
import teal, sys, os
host = teal.Host(workers=2)
model = host.load("sleep", "builtin:sleep")
future = model.submit(30_000_000)
print(*(worker.pid for worker in host.statistics().workers), flush=True)
if sys.argv[1] == "exit": sys.exit(0)
if sys.argv[1] == "raise": raise ValueError
if sys.argv[1] == "os._exit": os._exit(0)
"""


@pytest.mark.parametrize(("how", "status"), [("fall off", 0), ("exit", 0), ("raise", 1), ("os._exit", 0)])
def test_a_program_that_forgets_to_close(how: str, status: int) -> None:
    """Its workers go with it, whatever they are doing."""
    pids = [int(pid) for pid in run(FORGETFUL, how, status=status).split()]
    assert len(pids) == 2
    while any(alive(pid) for pid in pids):
        pass


def test_close_from_another_thread_and_twice_at_once() -> None:
    host = teal.Host()
    closers = [threading.Thread(target=host.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    with pytest.raises(teal.Closed):
        host.models()


def test_stop_is_close(host: teal.Host) -> None:
    other = teal.Host()
    client = teal.connect(other.address)
    client.stop()  # stops the host, wherever it runs
    with contextlib.suppress(teal.TealError):
        while True:
            other.models()
    other.close()
    assert host.models() == []


def test_descriptors_and_threads_go_back() -> None:
    def counts() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def once() -> None:
        with teal.Host() as host:
            model = host.load("sum", "builtin:sum")
            x = model.new_inputs(x=(1 << 18,))
            futures = [model.submit(**x) for _ in range(3)]
            done = threading.Event()
            futures[0].add_done_callback(lambda _: done.set())
            done.wait()
            host.load("sized", "toy_kernels:sized")(100_000)

    once()
    before = counts()
    for _ in range(3):
        once()
    assert counts() <= before
