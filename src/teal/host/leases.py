"""How the host knows that a client still holds an output that came in a region of its own (a spill).

Theory of operation: with the region the client gets one end of a pipe, which it closes when the last view is gone. The
host's end then reports an error, whoever closed the other one and however: a client that dies, or a forked child that
held the view a little longer. Until then the bytes count against the client's quota. A client that closes its end and
keeps the pages fools only itself: they are in its own memory. Beyond ``_MOST`` pipes of a session, more spills share
the newest one, and count until all of its spills are gone: a caller that holds a thousand outputs shall not run out of
descriptors for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from dataclasses import dataclass

_MOST = 64


@dataclass(slots=True)
class _Pipe:
    ours: int
    nbytes: int


class Leases:
    """The host's ends, of one session."""

    def __init__(self) -> None:
        self._pipes: list[_Pipe] = []

    @property
    def nbytes(self) -> int:
        """What the client still holds."""
        return sum(pipe.nbytes for pipe in self._pipes)

    def give(self, nbytes: int) -> int | None:
        """The client's end for one more spill, the caller's to close; None: it shares the newest one. On the loop."""
        if len(self._pipes) >= _MOST:
            self._pipes[-1].nbytes += nbytes
            return None
        theirs, ours = os.pipe()
        pipe = _Pipe(ours, nbytes)
        self._pipes.append(pipe)
        # Nothing is ever read here: it is the error at the other end that wakes the loop.
        asyncio.get_running_loop().add_reader(ours, self._let_go, pipe)
        return theirs

    def _let_go(self, pipe: _Pipe) -> None:
        if pipe in self._pipes:
            self._pipes.remove(pipe)
            asyncio.get_running_loop().remove_reader(pipe.ours)
            os.close(pipe.ours)

    def look(self) -> None:
        """Now, and not when the loop comes to it: has the client let go of some? On the loop."""
        poll = select.poll()
        by_fd = {pipe.ours: pipe for pipe in self._pipes}
        for fd in by_fd:
            poll.register(fd, select.POLLERR)
        for fd, _ in poll.poll(0):
            self._let_go(by_fd[fd])

    def end(self) -> None:
        """The client is gone. On the loop."""
        for pipe in list(self._pipes):
            self._let_go(pipe)

    def forget(self) -> None:
        """In a forked child: closes its copies."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                os.close(pipe.ours)
        self._pipes.clear()
