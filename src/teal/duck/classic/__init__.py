"""Ducks for hosts that speak JudgeDuck-OS's own protocol: one datagram in, at most one out (docs/duck-classic.md).

``Hatch`` answers it, beside a ``teal.duck.Server``; ``Client`` asks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from teal.duck.classic.client import Client
    from teal.duck.classic.hatch import Hatch

__all__ = ["Client", "Hatch"]


def __getattr__(name: str) -> Any:
    """Clients do not pay for the daemon."""
    if name == "Client":
        from teal.duck.classic.client import Client

        return Client
    if name == "Hatch":
        from teal.duck.classic.hatch import Hatch

        return Hatch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
