"""Placement by load, on a virtual clock: it follows what lasts, and does not flap."""

from __future__ import annotations

import itertools
import random

import pytest

from teal.host.placement import Place, Placement, Rule

STEP = 0.1
BUSY, QUIET, BETWEEN = (0.6, 80_000.0), (0.02, 1000.0), (0.15, 30_000.0)


class Clock:
    """Looks at a placement every tenth of a second."""

    def __init__(self, start: Place = Place.HOST) -> None:
        self.now = 0.0
        self.placement = Placement(start, 0.0)
        self.moves: list[tuple[float, Place]] = []

    def run(self, seconds: float, load: tuple[float, float]) -> None:
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            if (to := self.placement.look(self.now, *load)) is not None:
                self.moves.append((round(self.now, 3), to))


def test_a_load_that_lasts_gets_a_core_and_gives_it_back() -> None:
    clock = Clock()
    clock.run(3.0, BUSY)
    assert clock.moves == [(pytest.approx(0.3, abs=0.11), Place.OFFLOAD)]
    clock.run(1.5, QUIET)
    assert len(clock.moves) == 1  # a core too few hurts more: it waits longer on the way back
    clock.run(2.0, QUIET)
    assert [place for _, place in clock.moves] == [Place.OFFLOAD, Place.HOST]
    assert clock.placement.place is Place.HOST
    assert clock.placement.moves == 2


def test_a_blip_moves_nothing() -> None:
    clock = Clock()
    for _ in range(50):
        clock.run(0.1, BUSY)
        clock.run(0.5, QUIET)
    assert clock.moves == []


def test_between_the_thresholds_it_stays_where_it_is() -> None:
    for start in Place:
        clock = Clock(start)
        clock.run(60.0, BETWEEN)
        assert clock.moves == []


def test_events_alone_are_a_reason() -> None:
    clock = Clock()
    clock.run(1.0, (0.01, 90_000.0))
    assert clock.placement.place is Place.OFFLOAD


def test_a_load_that_swings_is_followed_ever_less() -> None:
    clock = Clock()
    for _ in range(60):
        clock.run(2.5, BUSY)
        clock.run(2.5, QUIET)
    stays = [b[0] - a[0] for a, b in zip(clock.moves, clock.moves[1:], strict=False)]
    assert len(clock.moves) < 20  # of 120 that a thermostat without memory would make
    assert max(stays) >= 30.0


def test_calm_makes_it_quick_again() -> None:
    clock = Clock()
    for _ in range(30):
        clock.run(2.5, BUSY)
        clock.run(2.5, QUIET)
    clock.run(400.0, QUIET)
    clock.run(1.0, BUSY)
    assert clock.placement.place is Place.OFFLOAD
    settled = len(clock.moves)
    clock.run(4.0, QUIET)
    assert len(clock.moves) == settled + 1


@pytest.mark.parametrize("seed", range(20))
def test_no_load_makes_it_move_faster_than_it_may(seed: int) -> None:
    chance = random.Random(seed)
    clock = Clock(chance.choice(list(Place)))
    for _ in range(300):
        clock.run(chance.choice((0.1, 0.3, 1.0, 3.0)), chance.choice((BUSY, QUIET, BETWEEN)))
    times = [at for at, _ in clock.moves]
    assert all(b - a >= Rule().stay - STEP for a, b in itertools.pairwise(times))
    places = [place for _, place in clock.moves]
    assert all(a is not b for a, b in itertools.pairwise(places))
