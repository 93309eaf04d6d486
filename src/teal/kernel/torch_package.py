"""A package of native code that AOTInductor has made (``torch._inductor.aoti_compile_and_package``).

Theory of operation: the package is a library with its weights in it. It runs as the host's user, so only that user may
load one. It does not say which tensors it takes: inputs may be of any dtype and shape, its own code refuses others than
it was made for, and outputs are copied out (counted). Each worker has weights of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from teal._core import WorkerSlot
from teal.errors import InvalidArgument
from teal.host.wire import Spec
from teal.kernel.protocol import Outcome, Source, check_inputs
from teal.kernel.sealed import one_line
from teal.kernel.torch import over, settle

_MOST = 256  # inputs or outputs


class PackageKernel:
    """See the module. Raises InvalidArgument."""

    pure = True

    def __init__(self, source: Source, name: str) -> None:
        if not source.trusted:
            raise InvalidArgument(
                f"{source.shown}: it is native code (AOTInductor), which runs as the host's user, so only that user "
                "may load it; load the exported program, or ask the host's owner",
                path="$.source",
            )
        if source.options:
            raise InvalidArgument(
                f"{sorted(source.options)}: the package is compiled already; leave options= out", path="$.options"
            )
        try:
            self._loader = _loader(source, name)
            inputs, outputs = (_leaves(json.loads(text)[1]) for text in self._loader.get_call_spec())
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            raise InvalidArgument(
                f"{source.shown}: not a package torch can load; compile it here: {one_line(error)}"
            ) from None
        if not (inputs <= _MOST and 0 < outputs <= _MOST):
            raise InvalidArgument(f"{source.shown}: {inputs} inputs and {outputs} outputs, expected 1 to {_MOST}")
        self.inputs = [Spec(f"input_{i}" if inputs > 1 else "input") for i in range(inputs)]
        self.outputs = [Spec(f"output_{i}" if outputs > 1 else "output") for i in range(outputs)]
        self.engine = f"torch {torch.__version__} (AOTInductor)"
        self.weights = "private"
        self._settings = (source.cores, source.precision or "fp32")

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome]:
        check_inputs(self.inputs, slot)
        given = [over(tensor, tensor.shape) for tensor in slot.inputs if tensor is not None]
        run, settings, wanted = self._loader.run, self._settings, slot.wanted

        def call() -> Outcome:
            settle(settings)
            made = run(given)
            return [value.contiguous() if asked else None for value, asked in zip(made, wanted, strict=True)]

        return call

    def close(self) -> None:
        self._loader = None


def _loader(source: Source, name: str) -> Any:
    """Loads the library. torch unpacks it into a folder, which is not needed any more once it is mapped."""
    folder = tempfile.mkdtemp(prefix=f"teal-package-{os.getpid()}-")
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = folder
    try:
        return torch._C._aoti.AOTIModelPackageLoader(f"/proc/self/fd/{source.fd}", name, False, 1, -1)
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


def _leaves(spec: dict[str, Any]) -> int:
    """Tensors in a tree spec of torch's, as JSON."""
    children = spec["children_spec"]
    return sum(map(_leaves, children)) if spec["type"] is not None else 1
