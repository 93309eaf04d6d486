"""Which host a process's graphs live at.

Theory of operation: the one that is named (options, then $TEAL_HOST); else this user's ``teal serve``, where processes
find each other's kernels; else one embedded in this process, started when the first graph needs it. One connection for
each, kept until it is lost: then the next graph or call looks anew. A forked child has none of its parent's.
"""

from __future__ import annotations

import logging
import os
import threading

from teal.errors import NotFound
from teal.host.host import Host, connect

log = logging.getLogger("teal.compile")

_hosts: dict[str | None, Host] = {}
_finding = threading.Lock()  # guards _hosts


def find(address: str | None) -> Host:
    """Raises NotFound when no host is at an address that was named."""
    with _finding:
        host = _hosts.get(address)
        if host is None or host._connection.closed:
            host = _hosts[address] = _attach(address)
        return host


def forget(host: Host) -> None:
    """It is lost: its process is gone, or this one is a fork."""
    with _finding:
        for address in [address for address, known in _hosts.items() if known is host]:
            del _hosts[address]


def _attach(address: str | None) -> Host:
    try:
        host = connect(address)
    except NotFound:
        if address is not None or os.environ.get("TEAL_HOST"):
            raise
        host = Host()
    log.info("graphs of this process live at %s (%s)", host.address, "embedded" if host.embedded else "attached")
    return host


def _forget_in_child() -> None:
    global _finding
    _finding = threading.Lock()
    _hosts.clear()


os.register_at_fork(after_in_child=_forget_in_child)
