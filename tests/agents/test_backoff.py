"""Back-off: doubling to a ceiling, anew after health. On a clock of the test's."""

from __future__ import annotations

from teal.host.backoff import Backoff


def test_it_doubles_up_to_the_most() -> None:
    backoff = Backoff()
    delays = [backoff.failed(0.0) for _ in range(12)]
    assert delays[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert delays[-1] == 30.0
    assert delays == sorted(delays)


def test_a_minute_of_health_forgives() -> None:
    backoff = Backoff()
    for _ in range(6):
        backoff.failed(0.0)
    backoff.began(100.0)
    assert backoff.failed(159.9) == 6.4  # not quite
    backoff.began(200.0)
    assert backoff.failed(260.0) == 0.1
    assert backoff.failed(261.0) == 0.2  # it never served in between


def test_it_never_overflows() -> None:
    backoff = Backoff(failures=10_000)
    assert backoff.failed(0.0) == 30.0
