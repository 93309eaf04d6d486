"""Policies on a virtual clock: what one would do on so many workers, under this load, when things break.

    from teal import sim
    result = sim.simulate("shinjuku:quantum=50us", workers=16, load=0.8)
    result["short"].percentile_us(99.9)

Theory of operation: core/sim drives the real seat, the real loop of an agent and the real policy, over workers and
requests that are made up, in one thread and without waiting. A seed decides everything that is by chance, so a run is
the same each time; faults (agents that die or freeze, lost wake-ups, messages that come twice, …) are part of it. The
books of the simulated pool are compared with what the seat lets through at each step. See docs/agents.md.

load.py    Type, what is asked for, and Trace, requests that were recorded
faults.py  Faults, what breaks and how often
spec.py    Spec, all that a run is made of
result.py  Result, TypeResult
run.py     simulate, any_run, hunt
"""

from __future__ import annotations

from teal.sim.faults import Faults
from teal.sim.load import Trace, Type
from teal.sim.result import Result, TypeResult
from teal.sim.run import AnyPolicy, any_run, hunt, simulate
from teal.sim.spec import Spec

__all__ = ["AnyPolicy", "Faults", "Result", "Spec", "Trace", "Type", "TypeResult", "any_run", "hunt", "simulate"]
