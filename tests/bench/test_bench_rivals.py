"""The real rivals, where `make bench-setup` has installed them: each starts, answers rightly and goes away."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from teal.bench import lanes, models
from teal.bench.rivals import work

ENVIRONMENT = lanes.rival_environment(None)
pytestmark = pytest.mark.skipif(ENVIRONMENT is None, reason="no .venv-bench: run make bench-setup")

ECHOES = [f"{size} request-response fresh" for size in work.SIZES] + [f"{size} pub-sub fresh" for size in work.SIZES]
MESSAGES = [f"{size} {wait} echo" for size in work.SIZES for wait in ("block", "poll")]


@pytest.mark.parametrize(
    ("module", "variants"),
    [
        ("iceoryx", ECHOES),
        ("zmq_ipc", MESSAGES),
        ("fastapi_ort", ["mlp", "mlp by hand"]),
        ("grpc_ort", ["mlp"]),
        ("litserve_ort", ["mlp"]),
        ("inprocess", ["mlp run", "mlp iobinding", "mlp raw"]),
    ],
)
def test_rival_answers(module: str, variants: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    assert ENVIRONMENT is not None
    folder = tmp_path_factory.mktemp("r", numbered=True)  # a short name: UNIX socket paths have 107 characters
    mlp = str(models.mlp())
    config = {"core": None, "server_core": None, "folder": str(folder), "mlp": mlp, "models": {"mlp": mlp}}
    with ENVIRONMENT.lane(f"rivals.{module}", config) as lane:
        for variant in variants:
            answer = lane.answer(variant)
            assert answer is not None
            if variant.startswith("mlp"):
                assert array("f", answer) == pytest.approx(expected_mlp(), abs=1e-5)
            else:
                assert answer == work.payload(work.SIZES[" ".join(variant.split()[:2])])
            times = lanes.take_turns([lanes.Entry(variant, lane, variant, n=3, warm=1)], blocks=2)[variant]
            assert len(times.all()) == 6
        own = f"teal_bench_{lane._process.pid}_*"  # other benches may run beside this one
        assert (module == "iceoryx") == any(Path("/dev/shm").glob(own))
    assert not any(Path("/dev/shm").glob(own))


def expected_mlp() -> list[float]:
    """The perceptron by hand, from the numbers that its script draws."""
    numbers = random.Random(20)

    def matrix(rows: int, columns: int) -> list[list[float]]:
        return [[(2 * numbers.random() - 1) / 8 for _ in range(columns)] for _ in range(rows)]

    def affine(x: list[float], w: list[list[float]], b: list[float]) -> list[float]:
        return [sum(x[i] * w[i][j] for i in range(len(x))) + b[j] for j in range(len(b))]

    w1, (b1,), w2, (b2,) = matrix(64, 64), matrix(1, 64), matrix(64, 8), matrix(1, 8)
    hidden = [max(value, 0.0) for value in affine(list(array("f", work.mlp_input())), w1, b1)]
    return affine(hidden, w2, b2)
