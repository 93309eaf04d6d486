"""Teal: resident models and native programs, called through shared memory at the cost of their maths.

    import teal
    with teal.Host() as host:
        model = host.load("minilm", "model.onnx")
        out = model(input_ids=ids, attention_mask=mask)

The names below are the whole public API; tests/test_public.py proves that each has this one door.
"""

from teal import memory as memory  # teal.memory.leaks()
from teal._core import Tensor
from teal._version import __version__
from teal.duck.duck import Duck
from teal.errors import (
    Busy,
    Cancelled,
    Closed,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    KernelFailed,
    NotFound,
    PeerDied,
    QuotaExceeded,
    TealError,
    VersionMismatch,
    WouldBlock,
)
from teal.host.event import Event
from teal.host.future import Future
from teal.host.host import Host, connect
from teal.host.limits import Limits
from teal.host.model import Model
from teal.host.outputs import Outputs
from teal.host.records import TensorSpec
from teal.kernel.function import signature

__all__ = [
    "Busy",
    "Cancelled",
    "Closed",
    "DeadlineExceeded",
    "Duck",
    "Event",
    "Future",
    "Host",
    "InternalError",
    "InvalidArgument",
    "KernelFailed",
    "Limits",
    "Model",
    "NotFound",
    "Outputs",
    "PeerDied",
    "QuotaExceeded",
    "Tensor",
    "TealError",
    "TensorSpec",
    "VersionMismatch",
    "WouldBlock",
    "__version__",
    "connect",
    "signature",
]
