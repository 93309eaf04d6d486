"""The source of a program: prelude of the device's language, the task, the kernels around it."""

from __future__ import annotations

from importlib import resources
from typing import Literal


def text(name: str) -> str:
    """A file of src/teal/device/source."""
    return (resources.files("teal.device") / "source" / name).read_text(encoding="utf-8")


def assemble(task: str, language: Literal["opencl", "cuda"]) -> str:
    """What the device's compiler gets. Line numbers in its messages count from the task's first line."""
    return f'{text(f"{language}.h")}\n#line 1 "task"\n{task}\n#line 1 "kernels"\n{text("kernels.h")}'


IDENTITY, SCALE = "identity.cl", "scale.cl"
