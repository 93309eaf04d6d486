"""Systems loads on the OpenCL devices that are here, called through a host."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import teal
from teal.errors import TealError

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "crash")]

from trained_models import Trained  # noqa: E402

KINDS = ("opencl:pocl", "opencl:intel")
_ASK = "import sys; from teal import device; device.open(sys.argv[1]).close()"
_missing: dict[str, str] = {}


def why_missing(kind: str) -> str:
    """Asked in a process of its own: a driver that is loaded here would be with all tests that fork."""
    if kind not in _missing:
        asked = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _ASK, kind], capture_output=True, text=True, check=False
        )
        _missing[kind] = "" if asked.returncode == 0 else (asked.stderr.strip().splitlines() or ["?"])[-1][:200]
    return _missing[kind]


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if why := why_missing(request.param):
        pytest.skip(f"no {request.param} here: {why}")
    return str(request.param)


@pytest.fixture(scope="session")
def pocl() -> str:
    """One device, for what does not depend on the driver."""
    if why := why_missing("opencl:pocl"):
        pytest.skip(f"no opencl:pocl here: {why}")
    return "opencl:pocl"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    folder = tmp_path_factory.mktemp("trained")
    made: dict[tuple[str, int], Trained] = {}

    def get(load: str, seed: int = 0) -> Trained:
        if (load, seed) not in made:
            made[load, seed] = Trained(folder, load, seed)
        return made[load, seed]

    return get


@pytest.fixture
def models(host: teal.Host) -> Iterator[Callable[..., teal.Model]]:
    """``models(trained, **options)``: loaded under a name of its own, unloaded after the test. By a client of its own,
    which counts its calls of so many models apart."""
    names: list[str] = []
    client = teal.connect(host.address)

    def get(which: Trained, **options: Any) -> teal.Model:
        names.append(f"d{len(names)}-{uuid.uuid4().hex[:12]}")
        return client.load(names[-1], which.path, **options)

    yield get
    for name in names:
        try:
            host.unload(name)
        except TealError:
            continue
    client.close()
