"""A mode: which policy decides, where it runs, and over what link."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """policy: as `--policy` takes it, "" for a pool without an agent. link: as `--link` takes it. inline: the policy is
    called in the worker, on the worker's core, without messages or decisions: the baseline."""

    name: str
    policy: str = ""
    link: str = "shm"
    inline: bool = False

    @property
    def host(self) -> str:
        """Modes with the same one share a host: an agent is seated anew for each block, an in-line policy stays."""
        return self.name if self.inline else "agents"


def inline(name: str, policy: str) -> Mode:
    return Mode(f"{name} in-line", policy, inline=True)


def offloaded(name: str, policy: str, link: str) -> Mode:
    return Mode(f"{name} {link}", policy, link)
