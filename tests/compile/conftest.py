"""A host for each module of tests, and ``compiled(model)``: what ``torch.compile(model, backend="teal")`` makes there.

Kernels run operator by operator unless a test asks for inductor, which costs seconds a graph.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import teal

Compile = Callable[..., Any]

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]  # needs torch


@pytest.fixture
def compiled(host: teal.Host) -> Iterator[Compile]:
    """``compiled(model, fullgraph=…, dynamic=…, **options)``."""
    import torch

    torch._dynamo.reset()

    def compiled(model: Any, *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any) -> Any:
        chosen = {"host": host.address, "compile": False, "fallback": "error", **options}
        return torch.compile(model, backend="teal", fullgraph=fullgraph, dynamic=dynamic, options=chosen)

    yield compiled
    torch._dynamo.reset()
