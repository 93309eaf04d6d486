"""Teal's ducks as a lane: a process with two of them, one without a key and one with, bound to one core or to none.

The boxes are children of it and inherit where it is bound; a duck that is not called sleeps.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any

from teal.bench.rivals import lane


def _free(host: str) -> str:
    """An address with a port that nobody has now, so that UDP and TCP have the same."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


class Pond:
    """The ducks, and the questions about them."""

    def __init__(self, host: str) -> None:
        from teal.duck import Server
        from teal.duck.key import make_key

        self.key = make_key()
        self._plain = Server(None, listen=_free(host), cache=False) if host.startswith("127.") else None
        self._keyed = Server(None, listen=_free(host), key=self.key, cache=False)

    def addresses(self) -> dict[str, str | None]:
        """local: of the UNIX socket; udp and keyed: HOST:PORT; key."""
        plain = self._plain
        return {
            "local": self._keyed.address,
            "udp": None if plain is None else plain.listening,
            "keyed": self._keyed.listening,
            "key": self.key,
        }

    def pids(self) -> list[int]:
        """This process and everything below it."""
        found, todo = [], [os.getpid()]
        while todo:
            pid = todo.pop()
            found.append(pid)
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a process or thread that has just ended
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
                        todo += [int(child) for child in children.read().split()]
        return found

    def cpu_ns(self, seconds: float) -> int:
        """CPU time that all of it uses within so many seconds; ns. This thread's own sleep is inside."""
        from teal.bench.machine import process_cpu_ns

        before = {pid: process_cpu_ns(pid) for pid in self.pids()}
        time.sleep(seconds)
        return sum(max(0, process_cpu_ns(pid) - spent) for pid, spent in before.items())

    def close(self) -> None:
        for server in (self._plain, self._keyed):
            if server is not None:
                server.close()


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core, or null; host: the address to listen at."""
    pond = Pond(config["host"])
    return lane.Contender(
        questions={"addresses": pond.addresses, "pids": pond.pids, "cpu_ns": pond.cpu_ns},
        note="process sandbox, default idle",
        close=pond.close,
    )


if __name__ == "__main__":
    lane.main(client)
