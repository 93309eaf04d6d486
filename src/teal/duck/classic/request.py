"""A request of the classic protocol: what one datagram asks for, or nothing.

Theory of operation: a request is words of ASCII with spaces between them, the first of which is its name; numbers are
decimal. Only write-buffer is followed by bytes: its offset, 8 bytes little-endian, and what is written. ``SHAPES``
says of each name what must follow. Whatever does not fit it exactly is no request, and nobody answers it. Numbers are
at most 64 bits wide here; whether they lie in the buffer is checked where they are used (buffer.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_READ = 1400  # bytes in the answer to one read-buffer, and in a datagram of the client
MOST_DATAGRAM = 65_507  # UDP's own
WRITE = b"write-buffer "
WRITE_HEAD = len(WRITE) + 8
JUDGE_NUMBERS = 16
KINDS = ("elf", "data")

# n: number, s: number with a sign, k: kind of cache, d: digest.
SHAPES = {
    "uptime": "",
    "statistics": "",
    "cpu-temp": "",
    "cpu-model-name": "",
    "sysinfo": "",
    "syslog": "sn",
    "query-all": "",
    "reboot": "",
    "query-buffer-size": "",
    "clear-buffer": "nn",
    "read-buffer": "nn",
    "copy-buffer": "nnn",
    "compare-buffer": "nnn",
    "digest-buffer": "nn",
    "judge": "n" * JUDGE_NUMBERS,
    "load-cache": "knnd",
    "store-cache": "knnd",
    "info-cache": "k",
}
_WORDS = {
    "n": re.compile(rb"[0-9]{1,20}"),
    "s": re.compile(rb"-?[0-9]{1,20}"),
    "k": re.compile(rb"elf|data"),
    "d": re.compile(rb"[0-9a-fA-F]{64}"),
}
_LONGEST_TEXT = 512  # sixteen numbers of twenty digits
_MOST = 1 << 64


@dataclass(frozen=True, slots=True)
class Request:
    """``words``: as they came, for the echo. ``numbers``, ``kind`` and ``digest`` (lower case): what they mean."""

    name: str
    words: bytes
    numbers: tuple[int, ...] = ()
    kind: str = ""
    digest: str = ""
    data: bytes = b""


def parse(datagram: bytes) -> Request | None:
    """The request, or None: it is malformed."""
    if datagram.startswith(WRITE):
        if len(datagram) < WRITE_HEAD:
            return None
        offset = int.from_bytes(datagram[len(WRITE) : WRITE_HEAD], "little")
        data = datagram[WRITE_HEAD:]
        return Request("write-buffer", b"write-buffer %d %d" % (offset, len(data)), (offset,), data=data)
    if len(datagram) > _LONGEST_TEXT:
        return None
    words = datagram.rstrip(b"\0\r\n ").split(b" ")
    name = words[0].decode("ascii", "replace")
    shape = SHAPES.get(name)
    if shape is None or len(words) != len(shape) + 1:
        return None
    if not all(_WORDS[kind].fullmatch(word) for kind, word in zip(shape, words[1:], strict=True)):
        return None
    found: dict[str, list[bytes]] = {"n": [], "k": [], "d": []}
    for kind, word in zip(shape, words[1:], strict=True):
        found["n" if kind == "s" else kind].append(word)
    numbers = tuple(map(int, found["n"]))
    if not all(-_MOST < number < _MOST for number in numbers):
        return None
    return Request(
        name,
        b" ".join(words),
        numbers,
        found["k"][0].decode() if found["k"] else "",
        found["d"][0].decode().lower() if found["d"] else "",
    )


def write_request(offset: int, data: bytes | memoryview) -> bytes:
    """The datagram of a write-buffer."""
    return b"".join((WRITE, offset.to_bytes(8, "little"), data))
