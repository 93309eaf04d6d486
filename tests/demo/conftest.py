"""What the demo's tests share: the demo as a process of its own, on the test double of Teal or on Teal itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from teal.demo.extras import require
from teal.errors import NotFound

DOUBLE = Path(__file__).parent / "double"


@pytest.fixture(scope="session")
def data() -> None:
    """Skips a test where the demo's packages are not installed."""
    try:
        require()
        from teal.demo import embedder

        embedder.model_path()
        embedder.tokenizer()
    except NotFound as error:
        pytest.skip(str(error))


@pytest.fixture
def on_double(data: None) -> Callable[..., subprocess.Popen[str]]:
    """Starts `teal demo` with arguments, on the double, with a fault made on purpose."""

    def start(*arguments: str, fault: str = "") -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(DOUBLE), "TEAL_DOUBLE": fault}
        program = [sys.executable, "-c", "from teal.cli.demo import command; command()", *arguments]
        return subprocess.Popen(
            program,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    return start


@pytest.fixture
def story(tmp_path: Path) -> Path:
    """A small text of unlike passages."""
    path = tmp_path / "story.md"
    path.write_text(
        "# House\n\n" + "The landlord pays for every repair of the roof and of the heating. " * 3 + "\n\n"
        "# Sea\n\n" + "Ships leave the harbour at dawn, when the tide is high. " * 3 + "\n\n"
        "# Kitchen\n\n" + "Bread needs flour, water, salt and a long night to rise. " * 3 + "\n",
        encoding="utf-8",
    )
    return path
