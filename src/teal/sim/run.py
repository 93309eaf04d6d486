"""Runs of the simulator: one, one of anything by its seed, many.

Theory of operation: a policy is made anew for each agent that comes in a run, as a host would: so what is given is what
makes one. Shipped policies run in the core; those written in Python are driven through the same seam as in an agent's
process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from teal import _core
from teal.agents.policy import Policy
from teal.agents.spec import PolicySpec, load, make, policy_names
from teal.errors import InvalidArgument
from teal.host import argument
from teal.sim.result import Result
from teal.sim.spec import Spec

AnyPolicy = str | type[Policy] | Callable[[], Policy | _core.Policy]
"""The words of a policy ("shinjuku:quantum=50us", "file.py:Class:param=x"), its class, or a function that makes one."""
Progress = Callable[[int], None]


def simulate(
    policy: AnyPolicy, spec: Spec | None = None, *, progress: Progress | None = None, **changes: Any
) -> Result:
    """One run of ``spec``, or of the usual one, with ``changes`` of its fields: ``simulate("edf", load=0.9, seed=7)``.

    ``progress`` is called now and then with how many requests have come. Raises InvalidArgument for what makes no
    sense, NotFound for a policy or a file that there is not, and what making the policy raises. What a policy raises
    later is in the result: the pool goes on without it.
    """
    made = argument.one_of(Spec() if spec is None else spec, Spec, "$.spec", "a teal.sim.Spec").with_(**changes)
    return _run(maker(policy), made.to_core(), progress)


def any_run(policy: AnyPolicy, seed: int, *, faults: bool | None = None, agents: int = 1) -> Result:
    """A short run of anything, by its seed: some workers, some types, a short ring, all faults in nine of ten.
    ``faults``: always, or never. ``agents``: 1 to 4 that the pool is dealt out to."""
    return _run(maker(policy), _any(seed, faults, agents), None)


def hunt(policy: AnyPolicy, seeds: Iterable[int], spec: Spec | None = None, *, agents: int = 1) -> Iterator[Result]:
    """Runs for many seeds, one after the other: of ``spec``, or of anything (``any_run``) with so many agents. A seed
    whose result is not ``ok`` gives the same one each time."""
    made = maker(policy)
    for seed in seeds:
        yield _run(made, _any(seed, None, agents) if spec is None else spec.with_(seed=seed).to_core(), None)


def _any(seed: int, faults: bool | None, agents: int = 1) -> _core.SimSpec:
    spec = _core.SimSpec.any_run(argument.whole(seed, 0, 2**64 - 1, "$.seed"), argument.whole(agents, 1, 4, "$.agents"))
    if faults is not None:
        spec.faults = _core.SimFaults.all() if faults else _core.SimFaults()
    return spec


class Maker:
    """Makes a policy for each agent, and knows what it is called."""

    def __init__(self, name: str, make_one: Callable[[], _core.Policy]) -> None:
        self.name = name
        self.make_one = make_one


def maker(policy: AnyPolicy) -> Maker:
    """Raises InvalidArgument, NotFound, and what making one raises: it is tried here."""
    if isinstance(policy, str):
        spec = PolicySpec.parse(policy)
        if spec.class_name:
            load(spec.target, spec.class_name)
        found = Maker(policy, lambda: make(spec.target, spec.class_name, spec.settings))
    elif callable(policy):
        name = getattr(policy, "name", "") or getattr(policy, "__name__", type(policy).__name__)
        found = Maker(str(name), lambda: _driven(policy()))
    else:
        raise argument.wrong(policy, "$.policy", f"{policy_names()[0]!r} or the like, a class, or what makes a policy")
    found.make_one()
    return found


def _driven(policy: object) -> _core.Policy:
    if isinstance(policy, _core.Policy):
        return policy
    if not isinstance(policy, Policy):
        raise InvalidArgument(f"{str(policy)[:80]!r} was made, expected a teal.agents.Policy", path="$.policy")
    return _core.PythonPolicy(policy)


def _run(made: Maker, spec: _core.SimSpec, progress: Progress | None) -> Result:
    start = time.perf_counter()
    # A policy may draw lots: the same ones each time. Whoever calls has its own back afterwards.
    theirs = random.getstate()
    random.seed(spec.seed)
    try:
        core = _core.simulate(spec, made.make_one, progress)
    finally:
        random.setstate(theirs)
    return Result(core, made.name, spec.seed, spec.workers, time.perf_counter() - start)
