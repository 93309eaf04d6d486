"""Programs that torch.export saves, small, for the tests of the torch kernel."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim


class Perceptron(torch.nn.Module):
    def __init__(self, width: int = 64, out: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Softmax(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(super().forward(x), -1)


class Two(torch.nn.Module):
    """Two inputs, a mapping of outputs, one of them a view."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        total = a + b
        return {"total": total, "top": total.max(dim=1).values, "turned": (a * 2).transpose(0, 1)}


class Counter(torch.nn.Module):
    """Keeps a count."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


class Scaled(torch.nn.Module):
    """A whole number as an input."""

    def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
        return x * k


class Nonzero(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)


class Cast(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


def save(path: Path, module: torch.nn.Module, example: Sequence[Any], shapes: Any = None) -> Path:
    """Exports the module and saves it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), tuple(example), dynamic_shapes=shapes)
        torch.export.save(program, str(path))
    return path


def batched(path: Path, module: torch.nn.Module, width: int = 64) -> Path:
    """Exports a module of one input ``x`` (batch, width)."""
    return save(path, module, [torch.randn(3, width)], {"x": {0: Dim("batch", min=1, max=4096)}})
