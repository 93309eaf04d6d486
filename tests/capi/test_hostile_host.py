"""A host that lies: each lie ends in an error of its own, under AddressSanitizer, and in no hang."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import random
import socket
import struct
import subprocess
import threading
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from capi_builds import Compile

from teal import _core

pytestmark = pytest.mark.xdist_group("capi")

Fds = list[int]
Answers = Callable[[str, int], tuple[bytes, Fds] | None]  # to a question's kind and number; None: hangs up

_encode = msgspec.msgpack.encode


def _memfd(size: int, *, sealed: bool = True) -> int:
    fd = os.memfd_create("lie", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.truncate(fd, size)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def _serve(sock: socket.socket, answers: Answers) -> None:
    sock.settimeout(30)
    with contextlib.suppress(OSError), sock.accept()[0] as client:
        client.settimeout(30)
        while data := client.recv(1 << 18):
            question = msgspec.msgpack.decode(data)
            answer = answers(question["body"]["t"], question["id"])
            if answer is None:
                return
            message, fds = answer
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            client.sendmsg([message], rights)
            for fd in fds:
                os.close(fd)


@pytest.fixture
def meet(sanitized: Compile) -> Callable[[Answers], str]:
    """``meet(answers)``: what the program said that met a host which answers so."""
    program = sanitized("meets")

    def meet(answers: Answers) -> str:
        address = f"@teal/{os.getuid()}/lie-{uuid.uuid4().hex[:12]}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.bind(b"\0" + address[1:].encode())
            sock.listen(1)
            thread = threading.Thread(target=_serve, args=(sock, answers))
            thread.start()
            done = subprocess.run(
                [program, address], capture_output=True, text=True, timeout=60, check=False,
                env={**os.environ, "UBSAN_OPTIONS": "halt_on_error=1"}, errors="replace",
            )  # fmt: skip
            thread.join()
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        return done.stdout

    return meet


def _reply(number: int, body: Any = None, **more: Any) -> bytes:
    return _encode({"id": number, "body": body, **more})


_SESSION = {"index": 1, "epoch": 1, "slots": 4, "idle_ns": 1000, "bytes": 1 << 20}


_SIZE = 8 << 20


def _region(kind: int, abi: int = _core.ABI_VERSION, magic: int = 0x4E4F494745524C54) -> int:
    """What core/memory/region.hpp calls a region, with zeroes in it: 1 of a session, 2 of tensors."""
    fd = _memfd(_SIZE)
    os.pwrite(fd, struct.pack("<QIIQIIIIQ", magic, abi, 4096, _SIZE, kind, 0, 0, 12, 0), 0)
    return fd


def _until(kind: str, lie: Callable[[int], tuple[bytes, Fds] | None]) -> Answers:
    """Honest up to that question, then the lie."""

    def answers(asked: str, number: int) -> tuple[bytes, Fds] | None:
        if asked == kind:
            return lie(number)
        if asked == "hello":
            return _reply(number, {}), []
        if asked == "open_session":
            return _reply(number, _SESSION), [_region(1)]
        if asked == "make_region":
            return _reply(number, {"region": 0, "nbytes": _SIZE}), [_region(2)]
        return _reply(number, None, error={"kind": "NotFound", "message": "no"}), []

    return answers


GARBAGE: list[Callable[[int], bytes]] = [
    lambda n: b"\xc1",
    lambda n: b"\x00",
    lambda n: b"\xdf\xff\xff\xff\xff",
    lambda n: b"\x91" * 1000,
    lambda n: _encode([1, 2, 3]),
    lambda n: _encode({"id": -1}),
    lambda n: _encode({"id": str(n), "body": None}),
    lambda n: _encode({"id": n, "body": None})[:-1],
    lambda n: _encode({"id": n, "body": None}) + b"\x00",
    lambda n: _encode({"id": n, "error": 7}),
    lambda n: _encode({"id": n, "error": {"kind": "NoSuchKind", "message": "\x1b[31m" * 3000}}),
    lambda n: _encode({"id": n, "in_file": True}),
    lambda n: _encode({"id": n, "body": [[[[[]]]]]}),
    lambda n: b"\x81" + os.urandom(100),
    lambda n: b"\xff" * (170 * 1024),  # longer than any message
]


@pytest.mark.parametrize("kind", ["hello", "open_session", "lookup"])
@pytest.mark.parametrize("index", range(len(GARBAGE)))
def test_garbage(meet: Callable[[Answers], str], kind: str, index: int) -> None:
    said = meet(_until(kind, lambda number: (GARBAGE[index](number), [])))
    assert "load 0" not in said
    assert ("init 0" in said) == (kind == "lookup" or (kind == "hello" and index == 12))  # hello's answer is not read


def test_no_answer_to_hello_ends(meet: Callable[[Answers], str]) -> None:
    said = meet(_until("hello", lambda number: (_reply(number + 99), [])))  # to another question
    assert "did not answer within 5 s" in said


@pytest.mark.parametrize("kind", ["hello", "open_session", "make_region", "lookup", "load"])
def test_hanging_up(meet: Callable[[Answers], str], kind: str) -> None:
    meet(_until(kind, lambda _: None))


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": 0},
        {"slots": 1 << 32},
        {"slots": 65536},  # more than the region holds
        {"index": -1},
        {"index": 1 << 40},
        {"idle_ns": 1 << 62},
        {"epoch": None},
    ],
)
def test_session_numbers(meet: Callable[[Answers], str], changes: dict[str, Any]) -> None:
    said = meet(_until("open_session", lambda number: (_reply(number, {**_SESSION, **changes}), [_memfd(1 << 16)])))
    assert "init 0" not in said


def test_session_descriptors(meet: Callable[[Answers], str]) -> None:
    lies: list[Callable[[], Fds]] = [
        list,
        lambda: [_memfd(0)],
        lambda: [_memfd(1 << 20, sealed=False)],
        lambda: [_memfd(1 << 20)],
        lambda: [_region(2)],
        lambda: [_region(1, abi=77)],
        lambda: [_region(1, magic=5)],
        lambda: [os.open("/dev/zero", os.O_RDWR)],
        lambda: [os.open("/", os.O_RDONLY)],
        lambda: [_memfd(4096), _memfd(4096), _memfd(4096), _memfd(4096), _memfd(4096)],  # more than a message may have
    ]
    for lie in lies:
        said = meet(_until("open_session", lambda number, lie=lie: (_reply(number, _SESSION), lie())))
        assert "init 0" not in said


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"region": 1 << 31, "nbytes": 5},
        {"region": -1, "nbytes": 5},
        {"region": "0"},
        {"region": (1 << 20) - 1, "nbytes": 1 << 60},  # as far as that goes it may say
    ],
)
def test_regions(meet: Callable[[Answers], str], body: Any) -> None:
    said = meet(_until("make_region", lambda number: (_reply(number, body), [_region(2)])))
    assert ("alloc 0" in said) == (body is not None and body.get("nbytes") == 1 << 60)


def test_region_descriptors(meet: Callable[[Answers], str]) -> None:
    body = {"region": 3, "nbytes": 1 << 20}
    for lie in (list, lambda: [_memfd(1 << 20)], lambda: [_region(1)], lambda: [os.open("/dev/null", os.O_RDWR)]):
        said = meet(_until("make_region", lambda number, lie=lie: (_reply(number, body), lie())))
        assert "init 0" in said
        assert "alloc 0" not in said


def test_the_same_region_twice(meet: Callable[[Answers], str]) -> None:
    def answers(asked: str, number: int) -> tuple[bytes, Fds] | None:
        if asked == "lookup":
            return _reply(number, _described(inputs=[{"name": "x"}])), []
        return _until("", lambda _: None)(asked, number)

    assert "load 0" in meet(answers)


def _described(**changes: Any) -> dict[str, Any]:
    honest = {
        "name": "anything", "version": 1, "index": 0, "pool": "default", "kernel": "onnx", "digest": "", "threads": 1,
        "idle_ns": None, "inputs": [{"name": "x", "dtype": "float32", "shape": ["n"]}],
        "outputs": [{"name": "y", "like": "x", "in_place": True}],
    }  # fmt: skip
    return {**honest, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"index": 1 << 40},
        {"index": -1},
        {"name": "x" * 5000},
        {"inputs": None},
        {"inputs": [{}] * 2000},
        {"inputs": [{"name": "x", "shape": [1] * 9}]},
        {"inputs": [{"name": "x", "shape": [-1]}]},
        {"inputs": [{"name": "x", "shape": [1 << 63]}]},
        {"inputs": [{"name": "x", "dtype": "float31"}]},
        {"outputs": [{"name": "y", "like": "nobody"}]},
        {"outputs": [{"name": "y", "like": "y", "in_place": True}]},
        {"threads": "many"},
        {"pool": 7},
        {"pool": ""},
        {"pool": "x" * 200},
    ],
)
def test_descriptions(meet: Callable[[Answers], str], changes: dict[str, Any]) -> None:
    said = meet(_until("lookup", lambda number: (_reply(number, _described(**changes)), [])))
    assert "load 0" not in said


def test_a_model_that_is_never_run(meet: Callable[[Answers], str]) -> None:
    assert "load 0" in meet(_until("lookup", lambda number: (_reply(number, _described()), [])))


def test_random_bodies(meet: Callable[[Answers], str]) -> None:
    dice = random.Random(7)
    good = _reply(4, _described())
    for _ in range(15):
        bad = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        meet(_until("lookup", lambda _, bad=bytes(bad): (bad, [])))
