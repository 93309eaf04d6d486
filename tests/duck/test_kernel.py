"""A program as a kernel of a host: in a worker's own duck, and in a pool of ducks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import teal
from teal.duck import Server
from teal.duck.key import make_key
from teal.kernel.elf import declared


@pytest.fixture(scope="module")
def host() -> teal.Host:
    with teal.Host() as host:
        yield host  # type: ignore[misc]


def test_without_a_signature_it_is_bytes_to_bytes(host: teal.Host, program: Path) -> None:
    model = host.load("bytes", program)
    assert [(spec.name, spec.dtype, spec.shape) for spec in (*model.inputs, *model.outputs)] == [
        ("args", "uint8", ("n",)),
        ("ob", "uint8", (None,)),
    ]
    for text in (b"e hello", b"e", b"e a longer text"):
        assert bytes(model(args=np.frombuffer(text, np.uint8))[0].numpy()) == text
    counted = [bytes(model(args=np.frombuffer(b"c", np.uint8))[0].numpy())[0] for _ in range(3)]
    assert counted == [1, 2, 3]  # its state is resident
    assert model.info.kernel == "elf"


def test_a_signature_by_options(host: teal.Host, program: Path) -> None:
    options = {"inputs": "tag:uint8[4]; x:float32[n,2]", "outputs": "same:uint8[4]; y:float32[n,2]"}
    model = host.load("tensors", program, options=options)
    tag = np.frombuffer(b"e123", np.uint8)
    for rows in (1, 5, 2):
        x = np.random.default_rng(rows).random((rows, 2), np.float32)
        same, y = model(tag=tag, x=x)
        assert bytes(same.numpy()) == b"e123"
        np.testing.assert_array_equal(y.numpy(), x)
    with pytest.raises(teal.InvalidArgument):
        model(tag=tag, x=np.zeros((2, 3), np.float32))


def test_a_signature_beside_the_program(host: teal.Host, program: Path, tmp_path: Path) -> None:
    file = tmp_path / "sum.elf"
    shutil.copy(program, file)
    weights = np.arange(1000, dtype=np.uint8)
    (tmp_path / "weights.bin").write_bytes(weights.tobytes())
    said = {"inputs": {"what": ["uint8", [1]]}, "outputs": {"sum": ["uint64", [1]]}, "cores": 2, "ib": "weights.bin"}
    (tmp_path / "sum.elf.json").write_text(json.dumps(said))
    model = host.load("sum", file)
    assert int(model(what=np.frombuffer(b"s", np.uint8))[0].numpy()[0]) == int(weights.sum(dtype=np.uint64))
    (tmp_path / "sum.elf.json").write_text(json.dumps({**said, "inputz": {}}))
    with pytest.raises(teal.InvalidArgument, match="inputz"):
        host.load("sum", file)


def test_a_program_that_dies_does_not_take_the_worker_along(host: teal.Host, program: Path) -> None:
    model = host.load("dies", program)
    workers = [worker.pid for worker in host.statistics().workers]
    with pytest.raises(teal.KernelFailed, match="SIGSEGV"):
        model(args=np.frombuffer(b"x", np.uint8))
    with pytest.raises(teal.KernelFailed, match="returned -3"):
        model(args=np.frombuffer(b"n\x03", np.uint8))
    assert bytes(model(args=np.frombuffer(b"c", np.uint8))[0].numpy())[0] == 1
    assert [worker.pid for worker in host.statistics().workers] == workers


def test_answers_that_do_not_suit(host: teal.Host, program: Path) -> None:
    model = host.load("short", program, options={"outputs": "y:float32[4]"})
    with pytest.raises(teal.KernelFailed, match="ends at byte 16"):
        model(args=np.frombuffer(b"e", np.uint8))
    with pytest.raises(teal.KernelFailed, match="the outputs have 16"):
        model(args=np.frombuffer(b"e" * 20, np.uint8))
    with pytest.raises(teal.InvalidArgument, match="option args"):
        model(args=np.zeros(1 << 20, np.uint8))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"options": {"inputs": "x float32"}}, "NAME:DTYPE"),
        ({"options": {"inputs": "x:float99[2]"}}, "float99"),
        ({"options": {"outputs": "y:float32[m]"}}, "expected an extent of an input"),
        ({"options": {"outputs": "y:float32[?,?]"}}, "expected at most 1"),
        ({"options": {"colour": "red"}}, "no such option"),
        ({"options": {"ob": "much"}}, "a size"),
        ({"threads": 2}, "option cores"),
        ({"precision": "bf16"}, "precision"),
        ({"device": "opencl"}, "device"),
    ],
)
def test_loads_that_make_no_sense(host: teal.Host, program: Path, settings: dict[str, object], says: str) -> None:
    with pytest.raises(teal.InvalidArgument, match=says):
        host.load("wrong", program, **settings)  # type: ignore[arg-type]


def test_a_pool_of_ducks(program: Path, tmp_path: Path) -> None:
    key = tmp_path / "duck.key"
    key.write_text(make_key())
    key.chmod(0o600)
    try:
        ducks = [Server(None, cache=False, memory=1 << 30, listen="127.0.0.1:0", key_file=key) for _ in range(2)]
    except teal.NotFound as error:
        pytest.skip(str(error))
    try:
        addresses = [str(duck.listening) for duck in ducks]
        with teal.Host(pools={"d": {"ducks": addresses, "duck_key_file": key}}) as host:
            model = host.load("remote", program, pool="d")
            assert [duck.residents.numbers()["open"] for duck in ducks] == [1, 1]
            futures = [model.submit(args=np.frombuffer(b"e%d" % i, np.uint8)) for i in range(40)]
            assert [bytes(future.result()[0].numpy()) for future in futures] == [b"e%d" % i for i in range(40)]
            host.unload("remote")
        with pytest.raises(teal.NotFound), teal.Host(pools={"d": {"ducks": ["127.0.0.1:1"]}}) as host:
            host.load("remote", program, pool="d")
    finally:
        for duck in ducks:
            duck.close()


def test_declarations() -> None:
    assert declared("x:float32[n,3];y:int8[]", "inputs") == {"x": ("float32", ["n", 3]), "y": ("int8", [])}
    for wrong in ("x", "x:float32", "x:float32[1];x:float32[1]", "1:float32[2]"):
        with pytest.raises(teal.InvalidArgument):
            declared(wrong, "inputs")
