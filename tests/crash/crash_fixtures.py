"""What the bad days share: hosts of their own, processes to be killed, and random numbers whose seed is said."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_host import CrashHost
from nursery import Nursery
from witness import affine_model

ROUNDS = float(os.environ.get("TEAL_CRASH_ROUNDS", "1"))  # multiplies how often the random tests kill


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of a seed that is printed when the test fails; TEAL_CRASH_SEED repeats it."""
    seed = int(os.environ.get("TEAL_CRASH_SEED") or random.SystemRandom().getrandbits(32))
    print(f"{request.node.name}: TEAL_CRASH_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def rounds() -> Callable[[int], int]:
    return lambda usual: max(1, round(usual * ROUNDS))


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = 2x + 1 for a vector of any length, as ONNX."""
    path = tmp_path_factory.mktemp("models") / "affine.onnx"
    path.write_bytes(affine_model())
    return path


@pytest.fixture
def hosts() -> Iterator[Callable[..., CrashHost]]:
    """Makes hosts that are gone after the test, whatever happened to them."""
    made: list[CrashHost] = []

    def make(*arguments: Any, **options: Any) -> CrashHost:
        made.append(CrashHost(*arguments, **options))
        return made[-1]

    yield make
    for host in made:
        host.close()


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as running:
        yield running
