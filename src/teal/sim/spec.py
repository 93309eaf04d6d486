"""All that a simulation is made of, but for its policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from teal import _core
from teal.errors import InvalidArgument
from teal.host import argument
from teal.sim import words
from teal.sim.faults import Faults
from teal.sim.load import Trace, Type
from teal.sim.words import Time

# Many short requests and a few long ones: what a first-come, first-served order is bad at.
USUAL = (Type("short", share=0.995, mean="10us"), Type("long", share=0.005, mean="10ms"))
_TIMES = {
    "link": "link_ns",
    "agent_step": "agent_step_ns",
    "agent_event": "agent_event_ns",
    "between": "worker_ns",
    "preempt": "preempt_ns",
    "poll": "poll_ns",
    "watchdog": "watchdog_ns",
    "max_wait": "max_wait_ns",
    "quantum": "quantum_ns",
    "restart": "restart_ns",
}


@dataclass(frozen=True)
class Spec:
    """A pool, what is asked of it, and what breaks.

    Attributes:
        types: what is asked for. With a trace: what is to be known of its types beyond their names.
        workers: 1 to 65536.
        agents: 1 to 4, of which each decides for so many of the workers, and gets a part of the requests; each breaks
            by itself.
        load: of what the workers can do; above 1 they are asked for more than that. Arrivals are a Poisson process.
        requests: how many come.
        trace: these requests, instead of ``load`` and ``requests``.
        faults: what breaks.
        seed: of everything that is by chance.
        records: requests that are out at most; others are turned away.
        ring: messages that the host may be ahead of the agent; a power of two.
        link: from the host to the agent, and back.
        agent_step, agent_event: what the agent needs for a look, and for each message and decision.
        between: from one request of a worker to the next.
        preempt: to take a request from its worker.
        poll: between looks of the agent while there is something to preempt.
        watchdog: an agent that is silent for so long is put off its seat.
        max_wait: and so is one that lets a request wait so long while a worker idles.
        quantum: in the pool's own order one leaves its worker after so long while others wait, if it can; 0: it does not.
        restart: until the next agent comes.
    """

    types: Sequence[Type] = USUAL
    workers: int = 16
    agents: int = 1
    load: float = 0.7
    requests: int = 10_000
    trace: Trace | None = None
    faults: Faults = field(default_factory=Faults)
    seed: int = 1
    records: int = 65_536
    ring: int = 8_192
    link: Time = "200ns"
    agent_step: Time = "100ns"
    agent_event: Time = "50ns"
    between: Time = "100ns"
    preempt: Time = "2us"
    poll: Time = "5us"
    watchdog: Time = "50ms"
    max_wait: Time = "50ms"
    quantum: Time = 0
    restart: Time = "10ms"

    def with_(self, **changes: Any) -> Spec:
        """Another one that differs in these. Raises InvalidArgument for a name that it does not have."""
        known = [each.name for each in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise InvalidArgument(f"{name[:80]!r}, expected one of {', '.join(known)}", path="$")
        return dataclasses.replace(self, **changes)

    def to_core(self) -> _core.SimSpec:
        """The core's form. Raises InvalidArgument with the path of what makes no sense."""
        made = _core.SimSpec()
        types = self._types()
        made.types = [each.to_core(f"$.types[{i}]") for i, each in enumerate(types)]
        made.workers = argument.whole(self.workers, 1, 1 << 16, "$.workers")
        made.agents = argument.whole(self.agents, 1, min(4, made.workers), "$.agents")
        made.load = words.number(self.load, 1e-6, 100, "$.load")
        made.requests = argument.whole(self.requests, 1, 10**9, "$.requests")
        made.faults = argument.one_of(self.faults, Faults, "$.faults", "a teal.sim.Faults").to_core()
        made.seed = argument.whole(self.seed, 0, 2**64 - 1, "$.seed")
        made.records = argument.whole(self.records, 1, 1 << 20, "$.records")
        made.ring = argument.whole(self.ring, 1, 1 << 20, "$.ring")
        if made.ring & (made.ring - 1):
            raise InvalidArgument(f"{made.ring}, expected a power of two", path="$.ring")
        for name, of_core in _TIMES.items():
            setattr(made, of_core, words.time(getattr(self, name), f"$.{name}", 1 if name == "poll" else 0))
        if self.trace is not None:
            made.replay(self.trace.at_ns.tobytes(), self.trace.types.tobytes(), self.trace.service_ns.tobytes())
        return made

    def _types(self) -> list[Type]:
        if isinstance(self.types, (str, bytes)) or not isinstance(self.types, Sequence):
            raise argument.wrong(self.types, "$.types", "a list of teal.sim.Type")
        types = [argument.one_of(t, Type, f"$.types[{i}]", "a teal.sim.Type") for i, t in enumerate(self.types)]
        if self.trace is not None:
            trace = argument.one_of(self.trace, Trace, "$.trace", "a teal.sim.Trace")
            said = {each.name: each for each in types}
            types = [said.get(name, Type(name)) for name in trace.names]
        if not 1 <= len(types) <= 1024:
            raise InvalidArgument(f"{len(types)} types, expected 1 to 1024", path="$.types")
        if len({each.name for each in types}) != len(types):
            raise InvalidArgument("two types have the same name; give each its own", path="$.types")
        return types
