"""What breaks in a simulation, and how often."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from teal import _core
from teal.sim import words


@dataclass(frozen=True)
class Faults:
    """Times a (virtual) second, or a share of 0 to 1 where it says so. All of it by the seed.

    Attributes:
        agent_dies: it never looks again.
        agent_freezes: for up to 200 ms: it may come back before the host has noticed, or after.
        agent_slow: a hundred times, for 5 ms.
        link_slow: a hundred times, for 5 ms.
        upgrades: another agent takes over while this one works.
        worker_dies: what it had begun runs again elsewhere; another one is there 2 ms later.
        overflows: messages are lost; the agent is told that some were.
        garbles: a message comes twice in the place of the next, or two change places.
        restates: the host repairs its words.
        priorities: a request's priority changes.
        cancels: share of the requests that are cancelled.
        lost_wakeups: share of the rings that nobody hears: the sleeper looks when its nap is over.
    """

    agent_dies: float = 0.0
    agent_freezes: float = 0.0
    agent_slow: float = 0.0
    link_slow: float = 0.0
    upgrades: float = 0.0
    worker_dies: float = 0.0
    overflows: float = 0.0
    garbles: float = 0.0
    restates: float = 0.0
    priorities: float = 0.0
    cancels: float = 0.0
    lost_wakeups: float = 0.0

    @classmethod
    def all(cls) -> Faults:
        """All of them, so often that a few hundred requests meet several."""
        core = _core.SimFaults.all()
        return cls(**{name: getattr(core, name) for name in NAMES})

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Reads "all", or "agent-dies=10,cancels=0.05". Raises InvalidArgument."""
        head, _, rest = text.partition(",")
        usual = cls.all() if head == "all" else cls()
        return dataclasses.replace(usual, **words.read(cls, rest if head == "all" else text, "$.faults"))

    def to_core(self) -> _core.SimFaults:
        """The core's form. Raises InvalidArgument."""
        made = _core.SimFaults()
        for name in NAMES:
            most = 1.0 if name in _SHARES else 1e5
            setattr(made, name, words.number(getattr(self, name), 0.0, most, f"$.faults.{name}"))
        return made


NAMES = tuple(field.name for field in dataclasses.fields(Faults))
_SHARES = frozenset({"cancels", "lost_wakeups"})
