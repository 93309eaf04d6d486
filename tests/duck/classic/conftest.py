"""What the tests of the classic protocol share: a duck with a hatch, a client, a bare socket, a program."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from teal.duck import Server, cc
from teal.duck.classic import Client, Hatch

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))  # for classic_way

from classic_way import Bare

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


@pytest.fixture
def bare(hatch: Hatch) -> Iterator[Bare]:
    bare = Bare(hatch.address)
    yield bare
    bare.close()
