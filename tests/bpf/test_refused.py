"""What a host does not take for a BPF session, and programs that do not suit one."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from desk import PROBE

import teal
from teal import _core, bpf
from teal.bpf import toolchain
from teal.host import address, wire

Load = Callable[..., teal.Model]

HASH, ARRAY, RINGBUF = 1, 2, 27
MMAPABLE, READ_ONLY = 1 << 10, 1 << 3
CREATE, FREEZE = 0, 22


class _Create(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("key", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
        ("entries", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("rest", ctypes.c_uint32 * 11),
    )


def _bpf(command: int, attributes: ctypes.Structure | ctypes.Array[ctypes.c_uint32]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    found: int = libc.syscall(number, command, ctypes.byref(attributes), ctypes.sizeof(attributes))
    assert found >= 0, os.strerror(ctypes.get_errno())
    return found


def _map(kind: int = ARRAY, key: int = 4, value: int = 65536, entries: int = 1, flags: int = MMAPABLE) -> int:
    return _bpf(CREATE, _Create(kind, key, value, entries, flags))


def _frozen() -> int:
    fd = _map()
    _bpf(FREEZE, (ctypes.c_uint32 * 4)(fd))
    return fd


def _memfd() -> int:
    fd = os.memfd_create("region")
    os.ftruncate(fd, 1 << 20)
    return fd


def _program() -> int:
    """Of any kind: its descriptor says "bpf-prog"."""
    code = (ctypes.c_uint64 * 2)(0x00000000000000B7, 0x0000000000000095)  # r0 = 0; exit
    licence = ctypes.create_string_buffer(b"GPL")

    class Load(ctypes.Structure):
        _fields_ = (
            ("kind", ctypes.c_uint32),
            ("count", ctypes.c_uint32),
            ("code", ctypes.c_uint64),
            ("licence", ctypes.c_uint64),
            ("rest", ctypes.c_uint32 * 8),
        )

    return _bpf(5, Load(1, 2, ctypes.addressof(code), ctypes.addressof(licence)))


WRONG: dict[str, tuple[Callable[[], int], str]] = {
    "a memfd": (_memfd, "the descriptor is not that of a BPF map"),
    "a program": (_program, "the descriptor is not that of a BPF map"),
    "a hash": (lambda: _map(HASH, flags=0), "BPF map of type 1 with 1 entries: expected a memory-mappable array"),
    "a ring buffer": (lambda: _map(RINGBUF, 0, 0, 4096, 0), "BPF map of type 27 with 4096 entries"),
    "an array that cannot be mapped": (lambda: _map(flags=0), "expected a memory-mappable array"),
    "an array of two": (lambda: _map(entries=2), "with 2 entries: expected a memory-mappable array"),
    "a frozen array": (_frozen, "the BPF map is frozen or read-only"),
    "a read-only array": (lambda: _map(flags=MMAPABLE | READ_ONLY), "the BPF map is frozen or read-only"),
    "half a page": (lambda: _map(value=65536 + 2048), "values of 67584 bytes: expected whole pages"),
    "a small one": (lambda: _map(value=4096), "BPF map of 4096 bytes, expected at least"),
}


@pytest.fixture
def client(host: teal.Host) -> Iterator[socket.socket]:
    """A connection that has said hello."""
    sock, _ = address.connect(host.address)
    with sock:
        _ask(sock, wire.Hello(wire.PROTOCOL, _core.ABI_VERSION, "test", os.getpid()))
        yield sock


def _ask(sock: socket.socket, message: wire.Message, fds: tuple[int, ...] = ()) -> object:
    wire.send(sock, wire.Envelope(1, message), fds)
    datagram = wire.receive(sock)
    assert datagram is not None
    try:
        return wire.body_of(wire.decode_reply(datagram.data), datagram)
    finally:
        datagram.close()


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_memory_for_a_session(what: str, permitted: None, client: socket.socket, host: teal.Host) -> None:
    make, said = WRONG[what]
    fd = make()
    open_here = len(os.listdir("/proc/self/fd"))
    try:
        with pytest.raises(teal.InvalidArgument) as caught:
            _ask(client, wire.OpenBpfSession("default", 4), (fd,))
        assert said in str(caught.value)
    finally:
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) <= open_here - 1  # the embedded host has closed its copy
    assert host.load("still", "builtin:sum")([1.0, 2.0])["sum"].numpy() == 3.0
    host.unload("still")


@pytest.mark.parametrize("slots", [0, 3, 2048, (1 << 32) - 1])
def test_slots_that_a_session_cannot_have(slots: int, permitted: None, client: socket.socket) -> None:
    fd = _map(value=1 << 20)
    try:
        with pytest.raises((teal.InvalidArgument, teal.QuotaExceeded)):
            _ask(client, wire.OpenBpfSession("default", slots), (fd,))
    finally:
        os.close(fd)


def test_no_map_at_all(client: socket.socket) -> None:
    with pytest.raises(teal.InvalidArgument, match="should have come with a file descriptor"):
        _ask(client, wire.OpenBpfSession("default", 4))
    with pytest.raises(teal.NotFound, match="BPF session 0 with pool 'default': not one of this connection"):
        _ask(client, wire.CloseBpfSession("default", 0))


def test_only_so_many(permitted: None, client: socket.socket) -> None:
    fds = [_map(value=1 << 18) for _ in range(17)]
    try:
        for fd in fds[:16]:
            _ask(client, wire.OpenBpfSession("default", 4), (fd,))
        with pytest.raises(teal.QuotaExceeded, match="this client has 16, the most it may have"):
            _ask(client, wire.OpenBpfSession("default", 4), (fds[16],))
    finally:
        for fd in fds:
            os.close(fd)


def test_its_bytes_count(permitted: None) -> None:
    with teal.Host(limits=teal.Limits(bytes=1 << 20)) as host:
        model = host.load("sum", "builtin:sum")
        with pytest.raises(teal.QuotaExceeded, match=r"a BPF map of .* bytes: this client has .* of its 1048576"):
            bpf.Session(model, slots=1024, x=(300,))
        with bpf.Session(model, slots=4, x=(300,)):
            client = next(client for client in host.statistics().clients if client.bytes > 0)
            assert client.bytes > 4 * 1200
            # And the other way round: what the map takes is not there for tensors.
            held = sum(client.bytes for client in host.statistics().clients)
            with pytest.raises(teal.QuotaExceeded, match=rf"this client has \d+ of its {1 << 20}"):
                host.empty(((1 << 20) - held,), "uint8")
            host.empty(((1 << 20) - held - 3 * 65536,), "uint8")
        host.empty(((1 << 20) - 3 * 65536,), "uint8")  # it is closed, and what it took is there again


def test_models_that_do_not_suit(permitted: None, load: Load) -> None:
    identity = load("builtin:identity")
    with pytest.raises(teal.InvalidArgument, match="strings cannot be filled in place"):
        bpf.Session(identity, x=("BYTES", (1,)))
    with pytest.raises(teal.InvalidArgument, match="give its shape"):
        bpf.Session(load("builtin:sum"))
    with pytest.raises(teal.InvalidArgument, match="expected a power of two"):
        bpf.Session(identity, slots=3, x=("uint8", (1,)))


def test_a_model_of_unknown_shapes(permitted: None, load: Load) -> None:
    with pytest.raises(teal.InvalidArgument, match="needs tensors whose shape is known before the run"):
        bpf.Session(load("toy_kernels:double"), x=("float32", (3,)))


def test_a_model_with_too_many_tensors(permitted: None, load: Load) -> None:
    many = {f"x{i}": ("float32", (1,)) for i in range(13)}
    with pytest.raises(teal.InvalidArgument, match="at most 12 inputs and outputs together"):
        bpf.Session(load("bpf_kernels:many"), **many)


# ---- programs and tools ----------------------------------------------------------------------------------------------


@pytest.fixture
def session(permitted: None, load: Load) -> Iterator[bpf.Session]:
    with bpf.Session(load("builtin:sum"), slots=2, x=(2,)) as session:
        yield session


def test_a_program_that_does_not_compile(session: bpf.Session, tmp_path: Path) -> None:
    source = tmp_path / "broken.bpf.c"
    source.write_text("int f(void) { return nothing; }\n")
    with pytest.raises(teal.InvalidArgument, match=r"broken\.bpf\.c does not compile: .*nothing"):
        bpf.Programs(source, session)


def test_the_program_of_the_page(session: bpf.Session, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "bpf.md").read_text()
    source = tmp_path / "page.bpf.c"
    source.write_text(page.partition("```c\n")[2].partition("```")[0])
    with bpf.Programs(source, session) as programs:
        assert programs.names() == ["on_issue"]
        programs.attach()


BEYOND = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "teal_bpf.h"
SEC("syscall") int beyond(void *ctx) {
    char *memory = teal_bpf_memory();
    if (memory) memory[teal_layout.bytes] = 1;
    return 0;
}
char LICENSE[] SEC("license") = "GPL";
"""


def test_a_program_that_reaches_beyond_the_session(session: bpf.Session, tmp_path: Path) -> None:
    source = tmp_path / "beyond.bpf.c"
    source.write_text(BEYOND)
    with pytest.raises(
        teal.InvalidArgument, match=r"(?s)the kernel does not take beyond\.o: .*invalid access to map value"
    ):
        bpf.Programs(source, session)


def test_objects_that_are_none(session: bpf.Session, tmp_path: Path) -> None:
    with pytest.raises(teal.NotFound, match="no such BPF program"):
        bpf.Programs(tmp_path / "nothing.o", session)
    (tmp_path / "text.o").write_text("no object")
    with pytest.raises(teal.InvalidArgument, match=r"text\.o is not a BPF object"):
        bpf.Programs(tmp_path / "text.o", session)
    (tmp_path / "other.bpf.c").write_text("int nothing_of_teal;\n")
    with pytest.raises(teal.InvalidArgument, match=r"it must include teal_bpf\.h"):
        bpf.Programs(tmp_path / "other.bpf.c", session)


def test_the_header_of_another_teal(session: bpf.Session, program: Path) -> None:
    session.layout = session.layout[:-4]
    with pytest.raises(teal.InvalidArgument, match=r"compiled with the teal_bpf\.h of another Teal"):
        bpf.Programs(program, session)


def test_names_that_are_not_there(session: bpf.Session, program: Path) -> None:
    with bpf.Programs(program, session) as programs:
        assert "send_one" in programs.names()
        for wrong in (
            lambda: programs.run("nothing"),
            lambda: programs.read("nothing"),
            lambda: programs.read("desk", 1),
        ):
            with pytest.raises(teal.NotFound):
                wrong()
        with pytest.raises(teal.InvalidArgument, match="5 bytes for BPF map 'desk', expected"):
            programs.write("desk", b"12345")
    with pytest.raises(teal.Closed, match="these BPF programs are closed"):
        programs.names()


def test_without_the_tools(monkeypatch: pytest.MonkeyPatch, permitted: None, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "clang", lambda: None)
    assert bpf.why_not() == f"no clang with a BPF target is installed: {toolchain.BRING}"
    assert bpf.why_not(compiler=False) is None
    with pytest.raises(teal.NotFound, match="apt-get install clang"):
        bpf.compile_program(PROBE, tmp_path / "probe.o")
    monkeypatch.setattr("teal.bpf.libbpf.library", lambda: None)
    assert bpf.why_not(compiler=False) == f"libbpf is not installed: {toolchain.BRING}"


def test_who_may_not(load: Load) -> None:
    """An ordinary user: one line that says so, and an error of Teal's. (Here: a child that gives its rights away.)"""
    if os.getuid() != 0:
        pytest.skip("not root: nothing to give away")
    model = load("builtin:sum")
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.setresuid(65534, 65534, 65534)
        os.write(writing, (bpf.why_not() or "").encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        line = said.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert line.startswith("BPF is not permitted here: making a BPF array")
    assert "\n" not in line
    assert model([1.0])["sum"].numpy() == 1.0
