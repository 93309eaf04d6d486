"""Teal: resident models and native programs, called through shared memory at the cost of their maths.

    import teal
    with teal.Host() as host:
        model = host.load("minilm", "model.onnx")
        out = model(input_ids=ids, attention_mask=mask)

The names below are the whole public API; tests/test_public.py proves that each has this one door.

Theory of operation: a program that imports this means to call models, so a client is imported at once and the first
call does not pay for it. What few programs use comes when it is asked for; in a worker or an agent (``-X teal=inside``)
everything does: they start often, and somebody waits for them.
"""

import typing as _typing
from importlib import import_module as _import_module
from sys import _xoptions

from teal._version import __version__

if _typing.TYPE_CHECKING:
    from teal import memory as memory  # teal.memory.leaks()
    from teal._core import Tensor
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

_HOMES = {
    "Duck": "teal.duck.duck",
    "Event": "teal.host.event",
    "Future": "teal.host.future",
    "Host": "teal.host.host",
    "Limits": "teal.host.limits",
    "Model": "teal.host.model",
    "Outputs": "teal.host.outputs",
    "Tensor": "teal._core",
    "TensorSpec": "teal.host.records",
    "connect": "teal.host.host",
    "signature": "teal.kernel.function",
}  # the others are errors
_WHEN_ASKED_FOR = frozenset({"Duck"})
_PARTS = frozenset({"agents", "bpf", "cluster", "compile", "device", "duck", "link", "memory", "queue", "sim", "tune"})


def __getattr__(name: str) -> _typing.Any:
    if name in _PARTS:  # teal.duck.Group(…) after `import teal` alone
        return _import_module(f"teal.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_import_module(_HOMES.get(name, "teal.errors")), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})


if _xoptions.get("teal") != "inside":
    from teal import memory as memory

    for _name in frozenset(__all__) - _WHEN_ASKED_FOR - globals().keys():
        __getattr__(_name)
