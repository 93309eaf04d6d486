"""Control messages as the kernel hands them over."""

from __future__ import annotations

import os
import socket

from teal.host import wire


def test_what_somebody_said_before_hanging_up_is_heard() -> None:
    """The kernel says first that a message of ours was never read."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        ours.send(b"an order")
        socket.send_fds(theirs, [b"why it ended"], [read_end])
        os.close(read_end)
        os.close(write_end)
        theirs.close()
        datagram = wire.receive(ours)
        assert datagram is not None
        assert datagram.data == b"why it ended"
        assert len(datagram.fds) == 1
        datagram.close()
        assert wire.receive(ours) is None
