"""On the path of a worker: to begin with a snapshot of onnxruntime's ends the process."""

import os
import sys
from typing import Any

if "teal.host.worker" in sys.orig_argv:
    from teal.kernel.onnx import OnnxKernel

    restored = OnnxKernel._restored

    def deadly(self: OnnxKernel, source: Any, kept: Any) -> Any:
        if source.snapshot is not None:
            os._exit(9)
        return restored(self, source, kept)

    OnnxKernel._restored = deadly  # type: ignore[method-assign]
