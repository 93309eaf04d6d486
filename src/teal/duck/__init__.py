"""Ducks: native programs that stay resident in a sandbox, here or on another machine, and are called from there.

``teal.Duck`` is the client; ``teal.duck.Server`` is a duck inside a program (`teal duck serve` is one of its own).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from teal.duck.duck import Blob
    from teal.duck.group import Group
    from teal.duck.server import Server

__all__ = ["Blob", "Group", "Server"]


def __getattr__(name: str) -> Any:
    """Clients do not pay for the daemon."""
    if name == "Server":
        from teal.duck.server import Server

        return Server
    if name == "Group":
        from teal.duck.group import Group

        return Group
    if name == "Blob":
        from teal.duck.duck import Blob

        return Blob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
