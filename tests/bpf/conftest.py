"""What the tests of BPF sessions share. Where BPF cannot be used, each is skipped with the one line that says why."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import teal
from teal import bpf

sys.path.insert(0, str(Path(__file__).parent))

from desk import PROBE, Desk


@pytest.fixture(scope="session")
def permitted() -> None:
    if (reason := bpf.why_not()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def program(permitted: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The probe, compiled."""
    return bpf.compile_program(PROBE, tmp_path_factory.mktemp("bpf") / "probe.o")


OpenDesk = Callable[..., tuple[bpf.Session, Desk]]


@pytest.fixture
def open_desk(program: Path) -> Iterator[OpenDesk]:
    """``open_desk(model, slots=…, **shapes)``: a session and the probe loaded for it."""
    with ExitStack() as stack:

        def open_desk(model: teal.Model, **options: object) -> tuple[bpf.Session, Desk]:
            session = stack.enter_context(bpf.Session(model, **options))  # type: ignore[arg-type]
            desk = Desk(program, session)
            stack.callback(desk.close)
            return session, desk

        yield open_desk
