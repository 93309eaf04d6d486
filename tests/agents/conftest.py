"""Fixtures of the tests of agents."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import teal

sys.path.insert(0, str(Path(__file__).parent))  # agents_fixtures, odd_policies


@pytest.fixture
def agent_host() -> Iterator[teal.Host]:
    """A host of the test's own, with two workers."""
    with teal.Host(f"agents-{uuid.uuid4().hex[:12]}", workers=2) as host:
        yield host


@pytest.fixture
def pools_host() -> Iterator[teal.Host]:
    """The same with a second pool, and a model in each: "echo", and "other" in "other"."""
    with teal.Host(f"agents-{uuid.uuid4().hex[:12]}", pools={"other": {}}) as host:
        host.load("echo", "builtin:identity")
        host.load("other", "builtin:identity", pool="other")
        yield host


@pytest.fixture
def echo(agent_host: teal.Host) -> teal.Model:
    return agent_host.load("echo", "builtin:identity")
