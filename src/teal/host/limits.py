"""What one client may use of a host."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass

from teal.errors import QuotaExceeded
from teal.host import argument


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Quotas. Each is checked by the host or the workers; a client that ignores them is held to them.

    bytes: shared memory of one client, in bytes. in_flight: its requests taken by a pool and not ended; more wait in
    its
    ring. slots: calls it may have memory for at once. models: model versions on this host. clients: connections.
    model_bytes: size of one model file.
    """

    bytes: int = 0
    in_flight: int = 1024
    slots: int = 1024
    models: int = 128
    clients: int = 256
    model_bytes: int = 16 << 30

    def __post_init__(self) -> None:
        if self.bytes == 0:
            object.__setattr__(self, "bytes", _half_of_memory())
        for name, low, high in (
            ("bytes", 1 << 16, 1 << 46),
            ("in_flight", 1, 8192),
            ("slots", 1, 65536),
            ("models", 1, 256),
            ("clients", 1, 1024),
            ("model_bytes", 1, 1 << 46),
        ):
            value = getattr(self, name)
            argument.whole(value, low, high, f"$.limits.{name}")


def raise_descriptors() -> int:
    """Raises the soft limit of open files to the hard one, for this process and the workers to come. Returns it.

    A host holds some for each client and each region, and the soft limit is usually low for the sake of programs that
    use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # where the system takes no such number
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def spare_descriptors(fd: int, what: str, share: float) -> None:
    """Raises QuotaExceeded when ``fd`` (they are given out lowest first) is beyond this share of the process's own."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if fd >= most * share:
        raise QuotaExceeded(
            f"{what}: descriptor {fd} of the {most} that the host's process may have open; "
            "close clients or free memory, or start the host under a larger `ulimit -Hn`"
        )
