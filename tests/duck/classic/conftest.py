"""What the tests of the classic protocol share: a duck with a hatch, programs, a bare socket, a relay that loses."""

from __future__ import annotations

import random
import select
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from teal.duck import Server, cc
from teal.duck.classic import Client, Hatch

EXAMPLES = Path(__file__).parents[3] / "examples" / "duck"

# stdin: k (adds IB's first word to OB's), o (writes to stdout and stderr what is behind it), l (for ever), x (a crash).
ACTOR = """
#include <duckinfo.h>
int duck_main(duckinfo_t *info) {
    const char *in = (const char *)(uintptr_t)info->stdin_ptr;
    volatile uint64_t *ob = (uint64_t *)(uintptr_t)info->OB_ptr;
    switch (info->stdin_size ? in[0] : 0) {
    case 'k': ob[0] += *(const uint64_t *)(uintptr_t)info->IB_ptr; return 0;
    case 'o':
        duckinfo_print(info, in + 1, info->stdin_size - 1);
        duckinfo_complain(info, in + 1, info->stdin_size - 1);
        return 5;
    case 'w': info->stdout_size = info->stdout_limit + 1; return 0;
    case 'l': for (;;) __asm__ volatile("");
    case 'x': *(volatile char *)0x123 = 1;
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A duck in this process, with a hatch, that keeps nothing on disk."""
    with Server(None, cache=False, memory=1 << 30, classic="127.0.0.1:0", classic_buffer=8 << 20) as server:
        yield server


@pytest.fixture
def hatch(server: Server) -> Hatch:
    assert server.hatch is not None
    return server.hatch


@pytest.fixture
def client(hatch: Hatch) -> Iterator[Client]:
    with Client(hatch.address) as client:
        yield client


@pytest.fixture(scope="session")
def actor(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A DuckInfo program that does what its stdin says."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("classic")
    (folder / "actor.c").write_text(ACTOR)
    cc.compile_program(folder / "actor.c", folder / "actor.elf", abi="duckinfo")
    return (folder / "actor.elf").read_bytes()


class Bare:
    """A socket that sends what it is told, and sees all that comes."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect((host, int(port)))
        self._socket.settimeout(30)

    def ask(self, datagram: bytes) -> bytes | None:
        """The answer, or None: the hatch answers in order, so that of the question behind it says there was none."""
        self._socket.send(datagram)
        self._socket.send(b"query-buffer-size")
        first = self._socket.recv(65536)
        if first.startswith(b"ok-query-buffer-size ") and not datagram.startswith(b"query-buffer-size"):
            return None
        while not self._socket.recv(65536).startswith(b"ok-query-buffer-size "):
            pass
        return first

    def judge(self, numbers: list[int]) -> bytes:
        self._socket.send(b"judge " + b" ".join(b"%d" % number for number in numbers))
        return self._socket.recv(65536)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def bare(hatch: Hatch) -> Iterator[Bare]:
    bare = Bare(hatch.address)
    yield bare
    bare.close()


class Relay(threading.Thread):
    """Between a client and a hatch: loses, doubles and holds back datagrams of both directions, by a seed."""

    def __init__(self, target: str, *, loss: float, double: float, hold: float, seed: int) -> None:
        super().__init__(daemon=True)
        host, port = target.rsplit(":", 1)
        self._rates = (loss, double, hold)
        self._random = random.Random(seed)
        self._inner = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._inner.connect((host, int(port)))
        self._outer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._outer.bind(("127.0.0.1", 0))
        self._client: tuple[str, int] | None = None
        self._held: list[tuple[bool, bytes]] = []
        self._over = threading.Event()
        self.lost = self.doubled = self.held = 0
        self.address = "127.0.0.1:%d" % self._outer.getsockname()[1]
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            ready, _, _ = select.select([self._inner, self._outer], [], [], 0.002)
            if not ready:
                self._release()
            for one in ready:
                try:
                    if one is self._outer:
                        datagram, self._client = one.recvfrom(65536)
                    else:
                        datagram = one.recv(65536)
                except OSError:
                    continue
                self._pass(one is self._outer, datagram)

    def _pass(self, inwards: bool, datagram: bytes) -> None:
        loss, double, hold = self._rates
        if self._random.random() < loss:
            self.lost += 1
            return
        if self._random.random() < hold:
            self.held += 1
            self._held.append((inwards, datagram))
            return
        self._send(inwards, datagram)
        if self._random.random() < double:
            self.doubled += 1
            self._send(inwards, datagram)
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, []
        for inwards, datagram in held:
            self._send(inwards, datagram)

    def _send(self, inwards: bool, datagram: bytes) -> None:
        if inwards:
            self._inner.send(datagram)
        elif self._client is not None:
            self._outer.sendto(datagram, self._client)

    def close(self) -> None:
        self._over.set()
        self.join()
        self._inner.close()
        self._outer.close()
