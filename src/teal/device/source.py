"""The source of a program: prelude of the device's language, the task, the kernels around it."""

from __future__ import annotations

from importlib import resources
from typing import Literal

from teal.errors import InvalidArgument


def text(name: str) -> str:
    """A file of src/teal/device/source."""
    return (resources.files("teal.device") / "source" / name).read_text(encoding="utf-8")


SCRATCH = 16384  # bytes, unless a program says otherwise
MOST_SCRATCH = 32768  # with the kernel's copy of the directory, within the 48 KiB a group shares on every GPU


def assemble(task: str, language: Literal["opencl", "cuda"], scratch: int = SCRATCH) -> str:
    """What the device's compiler gets. Line numbers in its messages count from the task's first line.

    Raises InvalidArgument for more scratch than a device has.
    """
    if not 0 <= scratch <= MOST_SCRATCH:
        raise InvalidArgument(f"scratch: {scratch} bytes, expected 0 to {MOST_SCRATCH}")
    rounded = max(64, -(-scratch // 64) * 64)
    return "\n".join(
        [
            f"#define TEAL_SCRATCH_BYTES {rounded}",
            text(f"{language}.h"),
            '#line 1 "task"',
            task,
            '#line 1 "kernels"',
            text("kernels.h"),
        ]
    )


IDENTITY, SCALE = "identity.cl", "scale.cl"
