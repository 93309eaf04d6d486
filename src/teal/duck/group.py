"""Several ducks that are given the same data at once: it crosses the link once, by multicast.

    group = teal.duck.Group([first, second, third], interface="10.0.0.1")
    weights = group.map(sessions, data)

Theory of operation: those that have the data are not sent it. To the others it goes once, as datagrams to an IPv4 group
that each was told of over its own connection, sealed with a key of this blob alone; what a duck did not get that way it
gets over its connection, as always (docs/duck-protocol.md). A duck that takes nothing from groups (`teal duck serve
--multicast`) gets all of it so. A group saves bytes, or saves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from teal.duck import messages
from teal.duck.duck import Blob, Duck
from teal.duck.far import Far, put_to_all
from teal.duck.session import Session
from teal.duck.size import nbytes
from teal.errors import InvalidArgument
from teal.host import argument

ADDRESS = "239.255.84.76:9976"  # of an organisation's own; any other free one will do
_LEAST_DATAGRAM, _MOST_DATAGRAM = 1200, 8952


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """Bytes of contents. group: sent to all at once; single: to one duck that lacked them; skipped: it had them."""

    group_bytes: int
    single_bytes: int
    skipped_bytes: int


class Group:
    """``ducks`` are connections of this process, over UDP or TCP; all with a key, or none. They stay the caller's.

    ``interface``: IPv4 address of the interface by which datagrams leave; it must reach the ducks' own (``multicast``
    of teal.duck.Server). ``address``: "GROUP:PORT" to send to. ``rate``: bytes a second that the slowest of link and
    ducks takes; a higher one costs repairs, nothing else. ``datagram``: their length, which the link must carry.
    Raises InvalidArgument.
    """

    def __init__(
        self,
        ducks: Sequence[Duck],
        *,
        interface: str,
        address: str = ADDRESS,
        rate: int | str = "100MiB",
        datagram: int = 1452,
    ) -> None:
        if not ducks:
            raise InvalidArgument("no ducks, expected one or more", path="$.ducks")
        self._links: list[Far] = []
        for duck in ducks:
            if not isinstance(duck._link, Far):
                raise InvalidArgument(f"{duck.address} is on this machine, where nothing is sent", path="$.ducks")
            self._links.append(duck._link)
        self._ducks = list(ducks)
        self._interface, self._address = interface, address
        self._rate = nbytes(rate, "$.rate") if isinstance(rate, str) else rate
        self._rate = argument.whole(self._rate, 1, 1 << 40, "$.rate")
        self._datagram = argument.whole(datagram, _LEAST_DATAGRAM, _MOST_DATAGRAM, "$.datagram")
        self._group = self._single = self._skipped = 0

    def put(self, x: Any) -> Blob:
        """Leaves data (a packed array, bytes, or a path) with all of them. Raises what ``Duck.put`` does."""
        blob = self._ducks[0]._data(x)
        try:
            lacking = [link for link in self._links if not link.ask(messages.Has("data", [blob.digest]))[0]]
            self._skipped += blob.nbytes * (len(self._links) - len(lacking))
            if lacking:
                group, single = put_to_all(
                    lacking, "data", blob, (self._address, self._interface, self._rate, self._datagram)
                )
                self._group += group
                self._single += single
        finally:
            blob.close()
        return Blob(blob.digest, blob.nbytes)

    def map(self, sessions: Iterable[Session], x: Any) -> Blob:
        """``put``, and then the input buffer of each of these sessions of the group's ducks."""
        found = x if isinstance(x, Blob) else self.put(x)
        for session in sessions:
            session.map(found)
        return found

    def statistics(self) -> GroupNumbers:
        return GroupNumbers(self._group, self._single, self._skipped)

    def __repr__(self) -> str:
        return f"<teal.duck.Group of {len(self._ducks)} at {self._address}>"
