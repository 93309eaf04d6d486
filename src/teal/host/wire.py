"""Messages between client and host, and between host and worker.

Theory of operation: one message is one datagram of a UNIX SOCK_SEQPACKET socket (so a reader never sees half a
message),
msgpack with msgspec's tagged structs, file descriptors beside it as SCM_RIGHTS. Nothing here is on the path of a call.
A message that does not decode ends the connection of who sent it, and nothing else. Descriptors that came with it are
closed unless somebody took them.
"""

from __future__ import annotations

import array
import os
import socket
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from teal import _core
from teal.errors import InvalidArgument, TealError, from_core

PROTOCOL = 2
MAX_MESSAGE = 160 * 1024  # below the default socket buffer, so that one datagram always fits
MAX_FDS = 4
MAX_SEALED = MAX_FDS - 1  # regions with weights that a load may bring beside its file
LOAD_TIMEOUT = 120.0  # seconds a load may take unless its caller says otherwise
_MAX_TEXT = 16_000  # characters of an error: it must fit its datagram whatever it quotes


class Message(msgspec.Struct, tag_field="t", forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything that crosses a socket."""


class Spec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Name, dtype and shape of one input or output; ``None`` stands for "any"."""

    name: str
    dtype: str | None = None
    shape: list[int | str | None] | None = None
    like: str | None = None  # output: has dtype and shape of this input
    in_place: bool = False  # output: lies in the memory of the input it is like
    optional: bool = False


# ---- client → host ---------------------------------------------------------------------------------------------------


class Hello(Message, tag="hello"):
    protocol: int
    abi: int
    version: str
    pid: int


class OpenSession(Message, tag="open_session"):
    pool: str = "default"


class OpenBpfSession(Message, tag="open_bpf_session"):
    """The descriptor of the client's BPF map comes with it."""

    pool: str
    slots: int


class CloseBpfSession(Message, tag="close_bpf_session"):
    pool: str
    session: int


class MakeRegion(Message, tag="make_region"):
    session: int
    nbytes: int
    pages: str = "best"
    pool: str = "default"  # sessions are numbered in each pool


class FreeRegion(Message, tag="free_region"):
    session: int
    region: int
    pool: str = "default"


class Load(Message, tag="load"):
    name: str
    source: str | None = None
    kernel: str | None = None
    version: int | None = None
    pool: str | None = None  # where the name is, else "default"
    idempotent: bool | None = None
    threads: int | None = None
    idle_ns: int | None = None
    has_file: bool = False  # the model file's descriptor comes with the message
    has_weights: bool = False  # and that of the file beside it which holds its weights (.bin of an OpenVINO IR)
    timeout: float = LOAD_TIMEOUT  # seconds
    options: dict[str, str] = {}
    device: str | None = None  # as teal.device.open() takes it; None: no device
    path: str | None = None  # cpu, apk, pl or auto
    hold: bool = False  # unloaded when the last connection that holds it is gone (liblaika)
    digest: str | None = None  # SHA-256 that the file must have, hexadecimal
    precision: str | None = None  # fp32 or bf16: how an engine computes in float32
    concurrency: int | None = None  # workers that run the name at once, at most
    note: str = ""  # what the client has to say of it: what was tuned, or why that was not used
    sealed: int = 0  # descriptors of sealed memory with weights, which come after the file's (docs/compile.md)


class Verify(Message, tag="verify"):
    name: str | None = None  # None: every model
    version: int | None = None


class Unload(Message, tag="unload"):
    name: str
    version: int | None = None
    force: bool = False


class RollBack(Message, tag="roll_back"):
    """Makes an earlier version current again."""

    name: str
    version: int | None = None  # None: the one that was replaced last
    timeout: float = LOAD_TIMEOUT  # seconds


class Lookup(Message, tag="lookup"):
    name: str
    version: int | None = None
    hold: bool = False  # as in Load; what was loaded without it stays in any case
    keep: bool = False  # from now on it stays, whoever holds it
    files: bool = False  # with the descriptors of its file and of its sealed weights


class Release(Message, tag="release"):
    """This connection holds the model no more, or the version that it had asked for by its number."""

    name: str
    version: int | None = None


class ListModels(Message, tag="list_models"):
    pass


class Statistics(Message, tag="statistics"):
    pass


class TakeSpill(Message, tag="take_spill"):
    session: int
    spill: int
    pool: str = "default"


class StartAgent(Message, tag="start_agent"):
    """One agent for these pools: a policy for all of them, or one each. Options as agent_options.py has them."""

    pools: list[str]
    policies: list[str]
    options: dict[str, bool | int | float | str | list[int]] = {}


class StopAgent(Message, tag="stop_agent"):
    pool: str


class UpgradeAgent(Message, tag="upgrade_agent"):
    pool: str
    policies: list[str] = []  # none: the same as now
    options: dict[str, bool | int | float | str | list[int]] = {}


class ChangeAgent(Message, tag="change_agent"):
    pool: str
    settings: dict[str, str]


class LookAtAgents(Message, tag="look_at_agents"):
    pool: str | None = None  # None: all
    dump: bool = False  # with what the agent of that pool says of its policies' state


class Trace(Message, tag="trace"):
    """What happens in a pool from now on, for so long; the answer comes then."""

    pool: str
    seconds: float
    events: int = 1 << 18


class Stop(Message, tag="stop"):
    drain: bool = True
    timeout: float = 30.0


ClientMessage = (
    Hello
    | OpenSession
    | OpenBpfSession
    | CloseBpfSession
    | MakeRegion
    | FreeRegion
    | Load
    | Unload
    | RollBack
    | Lookup
    | Release
    | ListModels
    | Verify
    | Statistics
    | TakeSpill
    | StartAgent
    | StopAgent
    | UpgradeAgent
    | ChangeAgent
    | LookAtAgents
    | Trace
    | Stop
)


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    body: ClientMessage


class _Outside(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    body: msgspec.Raw


class Failure(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    kind: str
    message: str


class Reply(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: int
    body: Any = None
    error: Failure | None = None
    in_file: bool = False  # the body was too large for a datagram: it is in the sealed file that comes first


# ---- host → worker ---------------------------------------------------------------------------------------------------


class AddSession(Message, tag="add_session"):
    session: int
    epoch: int
    slots: int
    granted: int  # regions handed out so far; those that still exist follow
    bpf_bytes: int = 0  # not 0: the memory is a BPF map of so many bytes, with region 0 in it


class AddRegion(Message, tag="add_region"):
    session: int
    epoch: int
    region: int


class DropRegion(Message, tag="drop_region"):
    session: int
    epoch: int
    region: int


class DropSession(Message, tag="drop_session"):
    session: int
    epoch: int


class LoadKernel(Message, tag="load_kernel"):
    line: int
    generation: int
    name: str
    kernel: str
    source: str
    threads: int | None = None
    options: dict[str, str] = {}
    has_file: bool = False
    device: str | None = None
    path: str = "auto"
    idle_ns: int | None = None  # of a resident device kernel
    precision: str | None = None
    weights_bytes: int = 0  # so many bytes in front of the file are the one beside it, sealed with it
    trusted: bool = False  # its owner is the host's: it may bring native code
    sealed: int = 0  # descriptors of sealed weights that come after the file's
    wants_snapshot: bool = False  # an engine is to hand over the optimised form that it makes
    snapshot_key: str = ""  # what the one that comes with this was made with
    snapshot_parts: list[str] = []  # names of its parts, whose descriptors come behind the file's
    ducks: list[str] = []  # of the pool: where its programs run
    duck_key: str = ""  # path of their key
    headers: str = ""  # folder for headers that a compiler keeps precompiled; empty: none


class Adopt(Message, tag="adopt"):
    """A spare worker takes this place in the pool."""

    index: int


class Unbind(Message, tag="unbind"):
    """Bindings of the version go; a slot that calls it again gets a new one."""

    line: int
    generation: int


class DropKernel(Message, tag="drop_kernel"):
    line: int
    generation: int


class WarmUp(Message, tag="warm_up"):
    """A spare worker runs it once with inputs like these, and says so."""

    line: int
    generation: int
    inputs: list[tuple[str, list[int]] | None]


class GiveSpill(Message, tag="give_spill"):
    """The answer to FetchSpill. The region's descriptor comes with it, unless there is no such spill."""

    session: int
    epoch: int
    spill: int
    found: bool = False
    layout: list[tuple[int, str, list[int], int, int]] = []


class Open(Message, tag="open"):
    """Everything that was loaded before this worker came is loaded in it too: it may take requests."""


class AddSeat(Message, tag="add_seat"):
    """An agent is about to sit down. The descriptors of its view and its desk come with it."""

    seat: int
    incarnation: int
    link: str = "shm"


class DecideInline(Message, tag="decide_inline"):
    """A shipped policy decides in this worker, the pool's only one; no agent does."""

    policy: str


class DropSeat(Message, tag="drop_seat"):
    seat: int
    incarnation: int


class AddTrace(Message, tag="add_trace"):
    """Record into the region whose descriptor comes with it."""


class DropTrace(Message, tag="drop_trace"):
    pass


class Quit(Message, tag="quit"):
    pass


WorkerOrder = (
    AddSession
    | AddRegion
    | DropRegion
    | DropSession
    | LoadKernel
    | Unbind
    | DropKernel
    | WarmUp
    | GiveSpill
    | Open
    | Adopt
    | AddSeat
    | DecideInline
    | DropSeat
    | AddTrace
    | DropTrace
    | Quit
)

# ---- worker → host ---------------------------------------------------------------------------------------------------


class Ready(Message, tag="ready"):
    pid: int


class Loading(Message, tag="loading"):
    """From here on, should the worker die, it may be this kernel that killed it."""

    line: int
    generation: int


class Loaded(Message, tag="loaded"):
    line: int
    generation: int
    inputs: list[Spec] = []
    outputs: list[Spec] = []
    pure: bool = False
    seconds: float = 0.0
    error: Failure | None = None
    note: str = ""  # what of the order could not be had, and what was done instead
    engine: str = ""  # name and version of what runs it
    weights: str = ""  # where an engine keeps them
    memory: int = 0  # bytes by which the worker's own memory grew
    preemption: str = "none"  # how its requests can be taken from their worker: none, yields or anywhere
    restored: bool = False  # it began with the snapshot that came with the order


class Optimised(Message, tag="optimised"):
    """An engine's optimised form of the version that is being loaded; sealed files of its parts come with it."""

    line: int
    generation: int
    key: str
    parts: list[str]
    whole: bool = True  # made of nothing but the file


class Bound(Message, tag="bound"):
    """Slots of a device model with up to ``batch`` items (a power of two) take this path from now on."""

    line: int
    generation: int
    batch: int
    path: str
    why: str = ""


class Lost(Message, tag="lost"):
    """A resident kernel of the version does not answer; the worker that says so exits."""

    line: int
    generation: int
    why: str


class Wanted(Message, tag="wanted"):
    """A request for a parked version is waiting."""

    line: int
    generation: int


class Used(Message, tag="used"):
    """An engine's version is called with inputs like these."""

    line: int
    generation: int
    inputs: list[tuple[str, list[int]] | None]


class Warmed(Message, tag="warmed"):
    """What WarmUp asked for is done, or could not be."""

    line: int
    generation: int


class SeatAdded(Message, tag="seat_added"):
    """This worker has the regions of that incarnation."""

    seat: int
    incarnation: int


class Dropped(Message, tag="dropped"):
    what: str
    index: int
    epoch: int


class Spilled(Message, tag="spilled"):
    record: int
    generation: int
    nbytes: int
    layout: list[tuple[int, str, list[int], int, int]]  # output, dtype, shape, offset, bytes


class FetchSpill(Message, tag="fetch_spill"):
    """A request takes an output of another one that was spilled."""

    session: int
    epoch: int
    spill: int


WorkerReport = (
    Ready
    | Loading
    | Loaded
    | Optimised
    | Bound
    | Lost
    | Wanted
    | Used
    | Warmed
    | SeatAdded
    | Dropped
    | Spilled
    | FetchSpill
)

_encoder = msgspec.msgpack.Encoder()
decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
decode_order = msgspec.msgpack.Decoder(WorkerOrder).decode
decode_report = msgspec.msgpack.Decoder(WorkerReport).decode


def encode(message: msgspec.Struct) -> bytes:
    """One datagram. Raises InvalidArgument when it would not fit."""
    try:
        data = _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{error.object[:200]!r} is not UTF-8, in which names and paths travel") from None
    except OverflowError as error:
        raise InvalidArgument(f"a number is out of range: {error}") from None
    if len(data) > MAX_MESSAGE:
        raise InvalidArgument(f"control message of {len(data)} bytes, expected at most {MAX_MESSAGE}")
    return data


def envelope_id(data: bytes) -> int | None:
    """The number of an envelope whose body is not understood, or None when the envelope is not one either."""
    try:
        return msgspec.msgpack.decode(data, type=_Outside).id
    except msgspec.MsgspecError:
        return None


def failure_of(error: BaseException) -> Failure:
    """How an error travels. Errors that are not Teal's arrive as InternalError with their type's name."""
    if isinstance(error, TealError):
        return Failure(type(error).__name__, text_of(error))
    return Failure("InternalError", f"{type(error).__name__}: {text_of(error)}")


def text_of(error: BaseException) -> str:
    """What it says, so that it can travel: an exception of a user's may hold what is not UTF-8, or raise once more."""
    try:
        text = str(error)[:_MAX_TEXT]
    except Exception:
        return "(its text cannot be made)"
    return text.encode("utf-8", "backslashreplace").decode()


def raise_failure(failure: Failure) -> None:
    raise from_core(failure.kind, failure.message)


@dataclass(slots=True)
class Datagram:
    """A received message: its bytes and the descriptors that came with it (closed by ``close`` unless taken)."""

    data: bytes
    fds: list[int] = field(default_factory=list)

    def take_fd(self) -> int:
        """The next descriptor. Raises InvalidArgument when there is none."""
        if not self.fds:
            raise InvalidArgument("the message should have come with a file descriptor")
        return self.fds.pop(0)

    def close(self, keep: int = 0) -> None:
        """Closes its descriptors but the first ``keep``."""
        while len(self.fds) > keep:
            os.close(self.fds.pop())


def send(sock: socket.socket, message: msgspec.Struct, fds: tuple[int, ...] = ()) -> None:
    """Sends one message with descriptors (which stay the caller's)."""
    data = encode(message)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def send_reply(sock: socket.socket, reply: Reply, fds: tuple[int, ...] = ()) -> None:
    """Sends a reply of any size: a body too large for a datagram travels as a sealed file."""
    data = _encoder.encode(reply)
    if len(data) <= MAX_MESSAGE:
        send(sock, reply, fds)
        return
    fd = _core.sealed_file("teal:reply", _encoder.encode(reply.body))
    try:
        send(sock, Reply(reply.id, None, None, True), (fd, *fds))
    finally:
        os.close(fd)


def body_of(reply: Reply, datagram: Datagram) -> Any:
    """The reply's body, wherever it is. Raises the error the reply carries."""
    if reply.error is not None:
        raise from_core(reply.error.kind, reply.error.message)
    if not reply.in_file:
        return reply.body
    with open(datagram.take_fd(), "rb") as file:
        return msgspec.msgpack.decode(file.read())


def receive(sock: socket.socket) -> Datagram | None:
    """The next message, or None at the end of the connection. Raises BlockingIOError on a non-blocking socket."""
    space = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
    try:
        data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE + 1, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # it hung up with a message of ours unread; what it said before that comes after
        data, ancillary, flags, _ = sock.recvmsg(MAX_MESSAGE + 1, space, socket.MSG_CMSG_CLOEXEC)
    datagram = Datagram(data)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
            datagram.fds.extend(numbers)
    if not data:
        datagram.close()
        return None
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        datagram.close()
        raise InvalidArgument(
            f"control message longer than {MAX_MESSAGE} bytes, or with more than {MAX_FDS} descriptors"
        )
    return datagram
