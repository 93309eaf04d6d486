"""How a driver's host gets its policy: nowhere, in-line in the worker, or in an agent's loop of the driver's own.

An agent as `teal serve --policy` starts it is a process of its own. Two processes that both never sleep cannot share
a core by the millisecond, so here the loop of the agent is stepped by the driver; seat, messages and decisions are the
same. This is the one file of the bench that reaches into the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import teal

from .mode import Mode


def host(mode: Mode, core: int) -> teal.Host:
    """A host with one worker on a core; in-line modes have their policy from here."""
    if mode.inline:
        return teal.Host(workers=1, cores=[core], policy=f"{mode.policy}{_more(mode.policy)}inline=1")  # type: ignore[call-arg]
    return teal.Host(workers=1, cores=[core])


def _more(policy: str) -> str:
    return "," if ":" in policy else ":"


@contextmanager
def seated(host: teal.Host, mode: Mode) -> Iterator[Any]:
    """The mode's agent, to be stepped; None where there is none. It sits at the host's seat meanwhile."""
    if mode.inline or not mode.policy:
        yield None
        return
    raise NotImplementedError


def numbers(host: teal.Host) -> dict[str, Any]:
    return {}
