"""A client as the duck sees it: whose the sessions are."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class Owner:
    """One connection. Its sessions end with it."""

    label: str  # for people
    pid: int = 0  # on this machine
    here: bool = False  # on this machine: memory can be shared with it
    greeted: bool = False
    gone: bool = False
    connection: int = 0  # its number in the network loop
    number: int = field(default_factory=lambda: next(_numbers))
