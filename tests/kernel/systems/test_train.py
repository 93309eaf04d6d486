"""The training examples run as they stand, and what they train foretells more than the plain guesses beside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import teal
from teal.kernel.systems import file

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "systems"


def trained(script: str, *arguments: str) -> tuple[float, list[float]]:
    """(percent that the model gets right, percent that the guesses do)."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    model, guesses, *_ = done.stdout.splitlines()
    percents = [[float(number) for number in re.findall(r"([\d.]+) %", line)] for line in (model, guesses)]
    assert len(percents[0]) == 1
    assert len(percents[1]) == 2
    return percents[0][0], percents[1]


@pytest.mark.parametrize("load", ["linnos", "mllb", "kml"])
def test_small(load: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    right, guesses = trained(f"train_{load}.py", *([load] if load == "linnos" else []), str(path))
    assert right > max(guesses) + 3
    assert file.view(path).load.name == load


@pytest.mark.slow
@pytest.mark.parametrize("load", ["linnos+1", "linnos+2"])
def test_larger_linnos(load: str, tmp_path: Path) -> None:
    right, guesses = trained("train_linnos.py", load, str(tmp_path / "m.safetensors"))
    assert right > max(guesses) + 3


@pytest.mark.slow
def test_kleio(tmp_path: Path) -> None:
    right, guesses = trained("train_kleio.py", str(tmp_path / "m.safetensors"), "80")
    assert right > max(guesses) + 10


@pytest.mark.parametrize("load", ["linnos", "mllb", "kml"])
def test_what_comes_with_teal_is_trained(host: teal.Host, load: str) -> None:
    """The models beside the scripts give every verdict there is, and are what a call answers with."""
    import importlib

    sys.path.insert(0, str(EXAMPLES))
    try:
        script = importlib.import_module(f"train_{load}")
    finally:
        sys.path.remove(str(EXAMPLES))
    model = host.load(load, EXAMPLES / "models" / f"{load}.safetensors")
    if load == "linnos":
        known, took = script.trace(3000, seed=5)
        x, truth = script.digits_of(known), took > 450
    elif load == "mllb":
        x, truth = script.trace(3000, seed=5)
    else:
        import numpy as np

        random = np.random.default_rng(5)
        truth = random.integers(0, 4, 1000)
        x = np.array([script.window(kind, random) for kind in truth], np.float32)
    verdict = model(x)["verdict"].numpy()
    assert len(set(verdict.tolist())) == (4 if load == "kml" else 2)
    assert (verdict == truth).mean() > 0.85
