"""Ray: an actor's method that returns its 64 bytes, called and waited for. What a remote call costs on a Ray cluster.

Ray starts a dozen processes for a cluster of one node; they are not pinned, since they are what somebody who has Ray
runs anyway. The actor is pinned to the server's core. Not stopped between turns: Ray takes a stopped process for a dead
one.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import ray as _ray

from . import lane, work

ray: Any = _ray  # its types do not know what its decorators make


class Echo:
    """The actor."""

    def __init__(self, core: int) -> None:
        os.sched_setaffinity(0, {core})

    def run(self, data: bytes) -> bytes:
        return data


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core, server_core, folder."""
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
        object_store_memory=80 << 20, _node_ip_address="127.0.0.1",
    )  # fmt: skip
    actor = ray.remote(Echo).options(num_cpus=0).remote(config["server_core"])
    method = actor.run

    def echo() -> lane.Variant:
        data = work.payload(work.SMALL)

        def call() -> bytes:
            found: bytes = ray.get(method.remote(data))
            return found

        call()
        return lane.Variant(call, call)

    return lane.Contender(
        variants={"echo": echo},
        note="ray.get(actor.method.remote(64 bytes)), one node, actor pinned to the server's core",
        versions={"ray": ray.__version__},
        close=ray.shutdown,
    )


if __name__ == "__main__":
    lane.main(client)
