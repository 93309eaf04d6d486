"""What a host and an agent's process say to each other on their control socket.

Theory of operation: the same datagrams as everywhere (wire.py). The host believes nothing that comes back but that it
came: texts are cut, numbers are shown and used for nothing. Decisions do not travel here; they lie on the desk.
"""

from __future__ import annotations

import msgspec

from teal.host.wire import Failure, Message

LONGEST_TEXT = 8_000  # characters of a dump or a reason that the host keeps

# ---- host → agent ----------------------------------------------------------------------------------------------------


class Policy(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One policy to make; ``pool`` is whom it is for."""

    pool: str
    target: str
    class_name: str = ""
    settings: dict[str, str] = {}


class Begin(Message, tag="begin"):
    """The first order: make these policies, then lock yourself in."""

    policies: list[Policy]
    memory: int  # bytes of address space that it may add to what it has once they are made


class TakeSeat(Message, tag="take_seat"):
    """Sit down at this pool. The view's descriptor comes with it, then the desk's."""

    pool: str
    seat: int
    incarnation: int
    link: str = "shm"
    spin_ns: int = 0  # how long it looks for news before it sleeps
    models: dict[int, str] = msgspec.field(default_factory=dict)  # names, by the index that requests carry
    clients: dict[int, str] = msgspec.field(default_factory=dict)  # the same of sessions


class LeaveSeat(Message, tag="leave_seat"):
    pool: str
    incarnation: int


class NameModel(Message, tag="name_model"):
    """Requests of a model of that name may come from now on."""

    pool: str
    index: int
    name: str


class NameClient(Message, tag="name_client"):
    """Requests of a session of that client may come from now on."""

    pool: str
    index: int
    name: str


class Change(Message, tag="change"):
    """Settings of a pool's policy, one after the other."""

    pool: str
    settings: dict[str, str]


class Look(Message, tag="look"):
    """Say how you are; ``dump``: with the state of the policies, for people."""

    dump: bool = False


class Move(Message, tag="move"):
    """The host has put this process on other cores; ``spin_ns``: how long to look for news before sleeping there."""

    spin_ns: int


class Leave(Message, tag="leave"):
    """Leave all seats and end."""


AgentOrder = Begin | TakeSeat | LeaveSeat | NameModel | NameClient | Change | Look | Move | Leave

# ---- agent → host ----------------------------------------------------------------------------------------------------


class Ready(Message, tag="ready"):
    """It has imported what every agent needs, and waits for its first order."""


class Begun(Message, tag="begun"):
    """The policies are made and the walls are up; ``error``: or not, and it ends."""

    pid: int
    walls: dict[str, bool | int | str] = msgspec.field(default_factory=dict)
    error: Failure | None = None


class Seated(Message, tag="seated"):
    """Attached and ready: what it would decide counts once the host says so. ``settings``: of its policy, all."""

    pool: str
    incarnation: int
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    error: Failure | None = None


class Named(Message, tag="named"):
    """It knows that name."""

    pool: str
    index: int


class Changed(Message, tag="changed"):
    pool: str
    settings: dict[str, str] = msgspec.field(default_factory=dict)  # all of them, as they are now
    error: Failure | None = None


class Figures(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Of one seat, since it was taken; what the agent says of itself."""

    pool: str
    policy: str = ""
    settings: dict[str, str] = {}
    numbers: dict[str, int] = {}
    dump: str = ""


class Looked(Message, tag="looked"):
    figures: list[Figures]


class Faulted(Message, tag="faulted"):
    """A policy raised, or decided what makes no sense: this seat is given up. ``where``: the end of the traceback."""

    pool: str
    incarnation: int
    what: str
    where: str = ""


AgentReport = Ready | Begun | Seated | Named | Changed | Looked | Faulted

decode_order = msgspec.msgpack.Decoder(AgentOrder).decode
decode_report = msgspec.msgpack.Decoder(AgentReport).decode
