"""What a load may ask of an engine, and which files an engine reads.

Theory of operation: an engine is a library that runs models out of files: onnxruntime, OpenVINO, PyTorch. The host
knows their names and what can be asked of them, and nothing else: it never imports one. What the machine or the file
does not allow is refused by the worker that loads it.
"""

from __future__ import annotations

import os

from teal.errors import InvalidArgument
from teal.host import wire

PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino", "torch": "torch"}  # kind: the package that runs it
ENGINES = tuple(PACKAGES)
KINDS = "onnx, openvino, torch, systems, elf, function or builtin"
PRECISIONS = ("fp32", "bf16")
_EXTERNAL_DATA = "session.model_external_initializers_file_folder_path"


def check(load: wire.Load, kind: str) -> None:
    """Raises InvalidArgument for what a kernel of this kind cannot be asked."""
    if load.path not in (None, "cpu", "apk", "pl", "auto"):
        raise InvalidArgument(f"{load.path[:80]!r}, expected cpu, apk, pl or auto", path="$.path")
    if load.device is None and load.path is not None:
        raise InvalidArgument(f"path {load.path!r} without a device; give device= too", path="$.path")
    if load.device is not None and kind not in ("systems", "openvino"):
        raise InvalidArgument(
            f"device {load.device[:80]!r} for a kernel of kind {kind}, expected a systems load (.safetensors) or "
            "kernel='openvino'",
            path="$.device",
        )
    if kind == "openvino" and load.path is not None:
        raise InvalidArgument(f"path {load.path!r}: OpenVINO has one way to run a model; leave it out", path="$.path")
    if load.precision is not None:
        _check_precision(load.precision, kind)
    if kind == "systems" and (load.options or load.threads not in (None, 1)):
        raise InvalidArgument(
            "a systems load has no options and runs in one thread; leave options= and threads= out", path="$.options"
        )
    if load.sealed and kind != "torch":
        raise InvalidArgument(
            f"{load.sealed} sealed regions for a kernel of kind {kind}, expected kernel='torch', which alone takes its "
            "weights so",
            path="$.sealed",
        )
    if kind == "elf" and load.threads is not None:
        raise InvalidArgument(
            f"{load.threads}: a program has no threads of an engine; give the option cores", path="$.threads"
        )
    if _EXTERNAL_DATA in load.options:
        raise InvalidArgument(f"{_EXTERNAL_DATA}: is the model's own folder", path="$.options")


def _check_precision(precision: str, kind: str) -> None:
    if precision not in PRECISIONS:
        raise InvalidArgument(f"{precision[:80]!r}, expected fp32 or bf16", path="$.precision")
    if kind not in ENGINES:
        raise InvalidArgument(
            f"precision {precision!r} for a kernel of kind {kind}, expected one of the engines: {', '.join(ENGINES)}",
            path="$.precision",
        )


def threads_of(order: wire.LoadKernel) -> int:
    """Cores that a run of this kernel may keep busy at once."""
    return (order.threads or len(os.sched_getaffinity(0))) if order.kernel in ENGINES else 1


def weights_beside(source: str) -> str | None:
    """Path of the file that holds the weights of this one, if it is of a kind that has such a file."""
    return source[: -len(".xml")] + ".bin" if source.endswith(".xml") else None
