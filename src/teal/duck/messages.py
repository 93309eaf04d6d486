"""Messages between a duck and its clients.

Theory of operation: on one machine a message is a datagram of a UNIX socket with descriptors beside it, as between
client and host (host/wire.py, whose framing this is); between machines the same bytes travel in the connection of
docs/duck-protocol.md, where a blob goes by its digest instead of a descriptor. Each is answered by one Reply. A call is
none of them: it goes through the session's memory.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from teal.host.wire import Message

PROTOCOL = 2
MOST_CORES = 64
LEAST_ARGS, MOST_ARGS = 4096, 64 << 20
MOST_OB = 1 << 36
LONGEST_NS = 24 * 3600 * 10**9

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Bytes = Annotated[int, Meta(ge=0, le=1 << 40)]
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Hello(Message, tag="hello"):
    """The first message of a connection."""

    protocol: int
    version: str
    pid: int
    name: Annotated[str, Meta(max_length=200)] = ""


class Has(Message, tag="has"):
    """Which of these blobs need not be sent? Answer: a list of bool."""

    kind: str
    digests: Annotated[list[Digest], Meta(max_length=1000)]


class Put(Message, tag="put"):
    """A blob; its file's descriptor comes with it, or it has come over the wire under this digest."""

    kind: str
    nbytes: Bytes
    digest: Digest | None = None  # what it must be


class Open(Message, tag="open"):
    """A session with a program. The answer comes with its control memory and its fate page."""

    program: Digest
    name: Annotated[str, Meta(max_length=200)] = ""
    cores: Annotated[int, Meta(ge=1, le=MOST_CORES)] = 1
    ob: Annotated[int, Meta(ge=0, le=MOST_OB)] = 1 << 20
    args: Annotated[int, Meta(ge=0, le=MOST_ARGS)] = LEAST_ARGS
    idle_ns: Annotated[int, Meta(ge=0, le=LONGEST_NS)] | None = None  # None: the duck's own
    timeout_ns: Annotated[int, Meta(ge=0, le=LONGEST_NS)] = 0  # of one call; 0: no bound
    memory: Bytes = 0  # beyond the program's own image; 0: the duck's own choice
    sandbox: str | None = None  # process or kvm; None: the duck's own
    direct: Annotated[int, Meta(ge=0, le=65535)] = 0  # the client's UDP port for direct calls; 0: it wants none


class Map(Message, tag="map"):
    """The session's input buffer from now on: a blob, or shared memory whose descriptor comes with it, or none."""

    session: Number
    digest: Digest | None = None
    segment: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0  # the client's number for memory that it shares
    nbytes: Bytes = 0
    once: bool = False  # it will not be mapped again
    gone: Annotated[list[int], Meta(max_length=1000)] = msgspec.field(
        default_factory=list
    )  # segments that the client has no more


class Close(Message, tag="close"):
    session: Number
    kill: bool = False  # at once, without its duck_exit()


class Judge(Message, tag="judge"):
    """One run of a program from zero. Standard input comes as a descriptor, or as a blob of kind data."""

    program: Digest
    time_ns: Annotated[int, Meta(ge=1, le=500 * 10**9)] = 10**9
    memory: Bytes = 256 << 20
    stdin: Digest | None = None
    output: Bytes = 16 << 20  # of stdout and of stderr
    abi: str = "linux"
    sandbox: str | None = None


class Info(Message, tag="info"):
    pass


class Statistics(Message, tag="statistics"):
    pass


class Log(Message, tag="log"):
    start: int = -32768  # negative: from the end
    most: Annotated[int, Meta(ge=1, le=65536)] = 32768


class SelfTest(Message, tag="self_test"):
    pass


class Forget(Message, tag="forget"):
    """Empties the caches of what no session uses."""


class Stop(Message, tag="stop"):
    """From the duck's own user on its own machine."""


ClientMessage = Hello | Has | Put | Open | Map | Close | Judge | Info | Statistics | Log | SelfTest | Forget | Stop


class Envelope(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: Number
    body: ClientMessage


decode_envelope = msgspec.msgpack.Decoder(Envelope).decode


def decode_body(data: bytes, kind: Any) -> Any:
    """A message that came over the wire. Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(data, type=kind)


# What boxes call their mappings by, on both sides: whoever has a session may go over to one that it has by itself.
_SHARED = 1 << 62  # mappings of clients' memory; those of blobs have lower numbers


def segment_key(segment: int) -> int:
    """The number of a mapping of memory that a client shares, by the client's own number for it."""
    return _SHARED | segment


def digest_key(digest: str) -> int:
    """A mapping's number in a box."""
    return int(digest[:15], 16)
