"""A client made of nothing but a socket, msgpack and mmap: what a hostile program would use.

Theory of operation: it knows the protocol (src/teal/host/wire.py) and the layout of shared memory (session.hpp,
ring.hpp, request.hpp and descriptor.hpp of the core) and nothing of Teal's code, so that nothing of
Teal's own client keeps it from lying. It does the real handshake, has a real session and real regions, and can make a
correct call; the attacks (attacks.py) start from there.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import socket
import struct
import time
from typing import Any

import msgspec

PAGE = 4096
SESSION_HEADER = 192
RING_HEADER = 192
LINE = 64
ENTRY = struct.Struct("<HHIIIIiIIIIIIIII")  # 60 bytes: RequestEntry
TENSOR = struct.Struct("<BBHIQQQ8q")  # 96 bytes: TensorDesc
HEADER = struct.Struct("<IHHII48x")  # 64 bytes: DescriptorHeader
MAGIC = 0x43534454
ABSENT, UNPLANNED = 1, 2
F32, F64, I64, BYTES = 11, 12, 9, 18
assert (ENTRY.size, TENSOR.size, HEADER.size) == (60, 96, 64)
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
_libc = ctypes.CDLL(None, use_errno=True)


class HungUp(Exception):
    """The host ended the connection."""


class Attacker:
    """One connection. ``hello`` and ``enter`` are what an honest client does first."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(30)
        self.sock.connect(b"\0" + address[1:].encode() if address.startswith("@") else address)
        self.next = 0
        self.regions: dict[int, mmap.mmap] = {}

    def close(self) -> None:
        self.sock.close()
        for region in self.regions.values():
            with contextlib.suppress(BufferError):
                region.close()

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- messages ------------------------------------------------------------------------------------------------

    def send(self, data: bytes, fds: tuple[int, ...] = (), flags: int = 0) -> None:
        """Any bytes at all, with any descriptors. Raises HungUp."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.sock.sendmsg([data], ancillary, flags)
        except (BrokenPipeError, ConnectionResetError, ConnectionRefusedError):
            raise HungUp from None

    def post(self, kind: str, fds: tuple[int, ...] = (), flags: int = 0, **body: Any) -> None:
        self.next += 1
        self.send(msgspec.msgpack.encode({"id": self.next, "body": {"t": kind, **body}}), fds, flags)

    def answer(self) -> tuple[dict[str, Any], list[int]]:
        """The next reply and its descriptors. Raises HungUp."""
        try:
            data, ancillary, _, _ = self.sock.recvmsg(1 << 20, socket.CMSG_SPACE(64))
        except ConnectionResetError:
            raise HungUp from None
        fds = array.array("i")
        for _, _, payload in ancillary:
            fds.frombytes(payload[: len(payload) // 4 * 4])
        if not data:
            raise HungUp
        return msgspec.msgpack.decode(data), list(fds)

    def ask(self, kind: str, fds: tuple[int, ...] = (), **body: Any) -> tuple[Any, list[int]]:
        """(body, descriptors). Raises HungUp, RuntimeError with the host's error."""
        self.post(kind, fds, **body)
        while True:
            reply, given = self.answer()
            if reply["id"] in (self.next, 0):
                break
            for fd in given:
                os.close(fd)
        if reply.get("error"):
            raise RuntimeError(f"{reply['error']['kind']}: {reply['error']['message']}")
        return reply.get("body"), given

    def hello(self, **changes: Any) -> Any:
        return self.ask("hello", **{"protocol": 2, "abi": 6, "version": "0", "pid": os.getpid(), **changes})[0]

    # ---- memory --------------------------------------------------------------------------------------------------

    def enter(self, nbytes: int = 1 << 18) -> None:
        """A session and one tensor region, both mapped to be written."""
        self.hello()
        body, [fd] = self.ask("open_session", pool="default")
        self.session: int = body["index"]
        self.slots: int = body["slots"]
        self.memory = self._map(fd)
        self.capacity: int = struct.unpack_from("<I", self.memory, PAGE + 12)[0]
        self.ring = PAGE + SESSION_HEADER + RING_HEADER
        self.lines = self.ring + self.capacity * LINE
        self.position = 0
        self.generations = [0] * self.slots
        self.stamp = 0
        self.region = self.make_region(nbytes)

    def make_region(self, nbytes: int) -> int:
        body, [fd] = self.ask("make_region", session=self.session, nbytes=nbytes)
        self.regions[body["region"]] = self._map(fd)
        return int(body["region"])

    @staticmethod
    def _map(fd: int) -> mmap.mmap:
        memory = mmap.mmap(fd, 0)
        os.close(fd)
        return memory

    def word(self, slot: int) -> tuple[int, int, int]:
        """(generation, state, reason) of a completion line."""
        word = struct.unpack_from("<Q", self.memory, self.lines + slot * LINE)[0]
        return word >> 8 & 0xFFFFFF, word & 0xFF, word >> 32 & 0xFFFF

    def describe(self, offset: int, inputs: list[bytes], outputs: list[bytes], *, header: bytes | None = None) -> None:
        """A descriptor block of packed TensorDescs."""
        head = header or HEADER.pack(MAGIC, len(inputs), len(outputs), 256, 0)
        block = head + b"".join(inputs) + b"".join(outputs)
        memory = self.regions[self.region]
        block = block[: len(memory) - offset]
        memory[offset : offset + len(block)] = block

    def tensor(
        self,
        offset: int,
        shape: tuple[int, ...] = (4,),
        *,
        dtype: int = F64,
        flags: int = 0,
        capacity: int | None = None,
        nbytes: int | None = None,
    ) -> bytes:
        """A TensorDesc of 8-byte elements."""
        size = 8
        for extent in shape:
            size *= extent
        room = size if capacity is None else capacity
        used = size if nbytes is None else nbytes
        return TENSOR.pack(dtype, len(shape), flags, self.region, offset, room, used, *[*shape, *[0] * 8][:8])

    def push(self, **fields: int) -> None:
        """One ring entry, published. Any field may lie."""
        entry = {"generation": 1, "stamp": 1, "region": self.region, **fields}
        small = ("op", "flags", "slot", "generation", "model", "version", "priority", "stamp", "region", "reserved")
        halves = []
        for name in ("offset", "deadline", "submitted"):
            number = entry.get(name, 0)
            halves += [number & 0xFFFFFFFF, number >> 32]
        self.push_raw(ENTRY.pack(*(entry.get(name, 0) for name in small), *halves))

    def push_raw(self, payload: bytes) -> None:
        at = self.ring + (self.position & self.capacity - 1) * LINE
        self.memory[at + 4 : at + 64] = payload
        self.position = self.position + 1 & 0xFFFFFFFF
        self.memory[at : at + 4] = struct.pack("<I", self.position)

    def knock(self) -> None:
        """Rings the doorbell, whether or not somebody sleeps."""
        at = PAGE + 64
        bell = struct.unpack_from("<I", self.memory, at)[0]
        self.memory[at : at + 4] = struct.pack("<I", bell + 1 & 0xFFFFFFFF)
        word = ctypes.c_uint32.from_buffer(self.memory, at)
        _libc.syscall(_SYS_FUTEX, ctypes.byref(word), 1, 0x7FFFFFFF, None, None, 0)
        del word

    def call(self, model: int, slot: int = 0, offset: int = 0, patience: float = 30.0) -> tuple[int, int]:
        """(state, reason) of a call whose descriptor block is at ``offset``. (0, 0): it never ended."""
        self.generations[slot] = self.generations[slot] + 1 & 0xFFFFFF or 1
        self.stamp += 1
        generation = self.generations[slot]
        self.push(slot=slot, generation=generation, model=model, stamp=self.stamp, offset=offset)
        self.knock()
        until = time.monotonic() + patience
        while time.monotonic() < until:
            ended, state, reason = self.word(slot)
            if ended == generation and state >= 4:
                return state, reason
            time.sleep(0.0002)
        return 0, 0
