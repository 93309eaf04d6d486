"""A pool as one of its agents has it: a seat, and the workers that it decides for.

Theory of operation: a pool that has one agent is all of it. Of several, each sits at a seat of its own and decides for
every so-manieth worker; the core deals the requests to them (core/host/dealing.cpp), and takes over what waits at one
whose workers are all busy. Each is started, watched, upgraded and replaced by itself, so that one that fails leaves
only its own workers to the pool's order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from teal.errors import InvalidArgument

if TYPE_CHECKING:
    from teal.host.pool import Pool
    from teal.host.seat import Seat
    from teal.host.seats import Seats
    from teal.host.settings import PoolSettings


class AgentPart:
    """The ``index``-th of ``count`` parts of a pool."""

    def __init__(self, pool: Pool, index: int = 0, count: int = 1) -> None:
        self.pool = pool
        self.index = index
        self.count = count

    @property
    def name(self) -> str:
        return self.pool.name

    @property
    def settings(self) -> PoolSettings:
        return self.pool.settings

    @property
    def seats(self) -> Seats:
        return self.pool.seats

    @property
    def seat(self) -> Seat:
        return self.pool.seats[self.index]

    @property
    def workers(self) -> tuple[int, ...]:
        """Those that it decides for, by index."""
        return tuple(range(self.index, self.settings.workers, self.count))


def check(pools: tuple[Pool, ...], count: int) -> None:
    """Can these have so many agents? Raises InvalidArgument."""
    if count == 1:
        return
    if len(pools) != 1:
        raise InvalidArgument(
            f"{count} agents for {len(pools)} pools, expected one pool where several share it", path="$.agents"
        )
    if count > pools[0].settings.workers:
        raise InvalidArgument(
            f"{count} agents for the {pools[0].settings.workers} workers of pool {pools[0].name!r}: each needs one",
            path="$.agents",
        )


def deal(pool: Pool, count: int) -> None:
    """From now on so many seats share its workers and requests; before their agents come, and after they went (1)."""
    for worker in range(pool.settings.workers):
        pool.sweeper.seat_worker(worker, worker % count)
    pool.sweeper.deal_seats((1 << count) - 1 if count > 1 else 0)
