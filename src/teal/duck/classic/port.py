"""The port of a hatch: loopback, unless it is told that the network can be trusted."""

from __future__ import annotations

import socket
from typing import Any

from teal.duck.net import is_loopback, split_address
from teal.errors import Busy, InvalidArgument

_RECEIVE_BYTES = 4 << 20  # asked for; the system may give less


def resolved(listen: str, trusted: bool) -> tuple[socket.AddressFamily, Any]:
    """Where to listen. Raises InvalidArgument: others could reach it, and nobody said that they may."""
    host, port = split_address(listen)
    if not trusted and not is_loopback(host):
        raise InvalidArgument(
            f"{listen} can be reached from other machines, and the classic protocol has no authentication: whoever "
            "reaches it may run programs here; on a network of your own, say --classic-trusted",
            path="$.classic",
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise InvalidArgument(f"{listen}: {error.strerror}", path="$.classic") from None
    return found[0], found[4]


def bound(family: socket.AddressFamily, place: Any, listen: str) -> socket.socket:
    """A socket there. Raises Busy."""
    made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        made.bind(place)
    except OSError as error:
        made.close()
        raise Busy(f"classic protocol at {listen}: {error.strerror}") from None
    return made
