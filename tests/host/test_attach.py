"""teal.connect(): other processes, other threads and forked children on a running host."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal

PROGRAM = """
import sys, numpy as np, teal
host = teal.connect(sys.argv[1])
model = host.model("shared")
assert not host.embedded
for i in range(100):
    assert model(np.full(4, i))[0].numpy().tolist() == [2 * i] * 4
x = model.new_inputs(x=("float64", (3,)))
x["x"].numpy()[...] = 1.5
print(model(**x)[0].numpy().tolist())
"""


def python(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def gone(host: teal.Host, clients: int = 1) -> None:
    """Waits until only that many clients are left."""
    while len(host.statistics().clients) > clients:
        pass


def test_other_processes(host: teal.Host, load: Any) -> None:
    host.load("shared", "toy_kernels:double")
    processes = [python(PROGRAM, host.address) for _ in range(3)]
    assert [finished(process) for process in processes] == ["[3.0, 3.0, 3.0]\n"] * 3
    gone(host)
    host.unload("shared")


def test_the_address_may_come_from_the_environment(host: teal.Host) -> None:
    host.load("shared", "toy_kernels:double")
    assert finished(python(PROGRAM.replace("sys.argv[1]", ""), TEAL_HOST=host.address)) == "[3.0, 3.0, 3.0]\n"
    gone(host)
    host.unload("shared")


def test_attached_in_the_same_process(host: teal.Host) -> None:
    with teal.connect(host.address) as other:
        assert (other.embedded, other.address) == (False, host.address)
        assert repr(other).startswith("<teal.Host attached at ")
        model = other.load("theirs", "toy_kernels:double")
        assert int(host.model("theirs")(np.int64(2))[0].numpy()) == 4
        assert [info.name for info in other.models()] == [info.name for info in host.models()]
        x = model.new_inputs(x=("int64", (2,)))
        view = x["x"].numpy()
        assert len(host.statistics().clients) == 2
    with pytest.raises(teal.Closed):
        model(np.int64(1))
    with pytest.raises(teal.Closed):
        model(**x)
    view[...] = 7  # its pages stay
    assert view.tolist() == [7, 7]
    gone(host)
    assert int(host.model("theirs")(np.int64(3))[0].numpy()) == 6  # a model stays when the client that loaded it goes
    host.unload("theirs")


WEIGHING = """
import sys, numpy as np, teal
def memory():
    lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
    kinds = dict((line.split(":")[0], int(line.split()[1])) for line in lines)
    return kinds["Rss"] - kinds["Private_Clean"] - kinds["Shared_Clean"]  # code of libraries comes and goes
host = teal.connect(sys.argv[1])
rows = np.ones((1, 64), np.float32)
host.model("small")(rows)
before = memory()
big = host.model("big")
for _ in range(20):
    out = big(rows)[0].numpy()
assert out[0, 0] == 64
print((memory() - before) * 1024)
"""


def test_a_client_holds_no_weights(host: teal.Host, onnx_model: Any) -> None:
    """64 MiB of weights are in the worker, and not in who calls it."""
    helper, numpy_helper = pytest.importorskip("onnx.helper"), pytest.importorskip("onnx.numpy_helper")
    import onnx

    paths = {}
    for name, columns in (("small", 8), ("big", 1 << 18)):
        weights = numpy_helper.from_array(np.ones((64, columns), np.float32), "w")
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("ReduceMax", ["xw"], ["y"], keepdims=1)],
            "g",
            [value("x", onnx.TensorProto.FLOAT, ["n", 64])],
            [value("y", onnx.TensorProto.FLOAT, None)],
            [weights],
        )
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
        paths[name] = onnx_model("g (float[N] x) => (float[N] y) { y = Neg(x) }", name)
        paths[name].write_bytes(model.SerializeToString())
        host.load(name, paths[name], threads=1)
    assert host.model("big").info.bytes > 60 << 20
    grown = int(finished(python(WEIGHING, host.address)))
    assert grown < 4 << 20  # a sixteenth of the weights: slots and what Python keeps
    gone(host)
    for name in paths:
        host.unload(name)


def test_nobody_there() -> None:
    with pytest.raises(
        teal.NotFound, match=r"no host listens at @teal/none/nowhere .*; start one with `teal serve`, or embed"
    ):
        teal.connect("@teal/none/nowhere")
    for address in ("", "a" * 200, "a\0b"):
        with pytest.raises(teal.InvalidArgument, match="expected 1 to 100 bytes without NUL"):
            teal.connect(address)


def test_a_crowd_before_the_door() -> None:
    """More connections at once than a socket queues: who comes late waits, and is not told that nobody is there."""
    address = f"@teal/{os.getuid()}/crowd-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door, contextlib.ExitStack() as crowd:
        door.bind(b"\0" + address[1:].encode())
        door.listen(0)
        waiting = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                one = crowd.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                one.setblocking(False)
                one.connect(b"\0" + address[1:].encode())
                waiting += 1
        with pytest.raises(teal.PeerDied, match=r"something listens at .* and took no connection within 0.05 s"):
            teal.connect(address, timeout=0.05)
        served = threading.Thread(target=lambda: [door.accept()[0].close() for _ in range(waiting + 1)])
        served.start()
        with pytest.raises(teal.PeerDied):  # it was let in, and found that this is no host
            teal.connect(address)
        served.join()


def test_what_a_client_leaves_is_freed(host: teal.Host) -> None:
    host.load("shared", "toy_kernels:double")
    before = host.statistics().clients[0].bytes
    other = teal.connect(host.address)
    kept = [other.empty((1 << 20,), "float64") for _ in range(3)]
    kept.append(other.model("shared")(np.zeros(1 << 16))[0])
    assert sum(client.bytes for client in host.statistics().clients) > before + (24 << 20)
    other.close()
    gone(host)
    assert host.statistics().clients[0].bytes == before
    assert all(tensor.numpy().sum() == 0 for tensor in kept)  # still mapped here
    host.unload("shared")


def test_requests_of_a_client_that_leaves(host: teal.Host, tmp_path: Path) -> None:
    """What waits never runs; what runs is dropped when it has finished; nobody else notices."""
    mine = host.load("order", "toy_kernels:Order")
    other = teal.connect(host.address)
    theirs = other.model("order")
    running = theirs.submit(str(tmp_path / "open"))
    while not running.running():
        pass
    waiting = [theirs.submit(f"theirs {i}") for i in range(5)]
    patient = mine.submit("mine")
    other.close()
    gone(host)
    (tmp_path / "open").touch()
    patient.result()
    assert [tag.decode() for tag in mine("read")[0].numpy()] == ["mine"]
    assert all(future.exception() is not None for future in waiting)
    host.unload("order")


FORK = """
import os, sys, traceback
import numpy as np, teal
host = teal.connect(sys.argv[1])
model = host.model("shared")
out = model(np.arange(4.0))[0]
spare = model(np.arange(2.0))[0]
view, x = out.numpy(), model.new_inputs(x=("float64", (2,)))
call = model.prepare(np.arange(2.0))
future = model.submit(np.arange(3.0))
child = os.fork()
if child == 0:
    status = 0
    try:
        assert view.tolist() == [0, 2, 4, 6]
        for use in (
            lambda: model(np.arange(4.0)), lambda: model(**x), call, future.result, future.cancel, host.models,
            spare.release, lambda: model.new_inputs(x=("float64", (2,))), lambda: host.empty((3,)), model.statistics,
        ):
            try:
                use()
            except teal.Closed as error:
                assert "reopen after fork" in str(error), error
            else:
                raise AssertionError("no error")
        del view, x, call, future, out, spare
        with teal.connect(sys.argv[1]) as fresh:
            assert fresh.model("shared")(np.arange(3.0))[0].numpy().tolist() == [0, 2, 4]
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status) if sys.argv[2] == "hard" else sys.exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert future.result()[0].numpy().tolist() == [0, 2, 4]
assert view.tolist() == [0, 2, 4, 6]
assert call()[0].numpy().tolist() == [0, 2]
assert model(np.arange(2.0))[0].numpy().tolist() == [0, 2]
print("good")
"""


@pytest.mark.parametrize("exit", ["hard", "soft"])
def test_fork_in_a_client(host: teal.Host, exit: str) -> None:
    host.load("shared", "toy_kernels:double")
    assert finished(python(FORK, host.address, exit)) == "good\n"
    gone(host)
    host.unload("shared")


AWAITED = """
import asyncio, os, sys
import numpy as np, teal
model = teal.connect(sys.argv[1]).model("shared")
async def main(): return await model.submit(np.arange(3.0))
asyncio.run(main())  # starts the thread that tells asyncio
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(asyncio.run(main())[0].numpy().tolist())
"""


def test_fork_after_something_was_awaited(host: teal.Host) -> None:
    host.load("shared", "toy_kernels:double")
    assert finished(python(AWAITED, host.address)) == "[0.0, 2.0, 4.0]\n"
    gone(host)
    host.unload("shared")


def test_an_embedded_host_and_a_forked_child() -> None:
    """The child neither stops its parent's host nor keeps it from ending."""
    program = """
import os, sys, teal
with teal.Host() as host:
    model = host.load("sum", "builtin:sum")
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print(float(model([1.0, 2.0])[0].numpy()))
"""
    assert finished(python(program)) == "3.0\n"


def test_a_slow_load_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection, many threads: an answer that takes long keeps no other one waiting."""
    gate = tmp_path / "open"
    monkeypatch.setenv("TEAL_TEST_GATE", str(gate))  # read by the worker that starts below
    with teal.Host() as own:
        model = own.load("sum", "builtin:sum")
        loading = threading.Thread(target=lambda: own.load("slow", "toy_kernels:SlowToMake"))
        loading.start()
        assert float(model(np.ones(1 << 20, np.float32))[0].numpy()) == 1 << 20  # asks the host for more memory
        asked = [threading.Thread(target=own.statistics) for _ in range(8)]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
        assert loading.is_alive()
        assert [info.name for info in own.models()] == ["sum"]
        gate.touch()
        loading.join()
        assert int(own.model("slow")(np.int64(4))[0].numpy()) == 4


def test_hanging_up_while_an_answer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "open"
    monkeypatch.setenv("TEAL_TEST_GATE", str(gate))
    with teal.Host() as own:
        client = teal.connect(own.address)
        caught: list[BaseException] = []

        def loads() -> None:
            try:
                client.load("slow", "toy_kernels:SlowToMake")
            except BaseException as error:
                caught.append(error)

        loading = threading.Thread(target=loads)
        loading.start()
        while not client._connection._mailbox._answers:
            pass
        client.close()
        loading.join()
        assert isinstance(caught[0], teal.Closed)
        gate.touch()
