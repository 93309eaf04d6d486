"""A Python callable as a resident kernel: ``package.module:name``.

The callable gets NumPy views of the inputs (read-only, in place) and returns one array, a tuple or a mapping of
arrays; what it returns is
copied into the slot once, and counted. A class is instantiated at load and its instance called, so that state stays
resident. A
signature makes shapes known before the run and catches mistakes at the caller:

    @teal.signature(inputs={"x": ("float32", ("n", 3))}, outputs={"y": ("float32", ("n",))})
    def norm(x): return np.linalg.norm(x, axis=1)

Without one, inputs are the callable's parameters, of any dtype and shape, and there is one output, ``output``. A
function may have
effects: it is never run again after a worker died, nor run after a successful cancel(), unless it was loaded as
idempotent.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from teal._core import WorkerSlot, dtype_size
from teal.errors import InvalidArgument, KernelFailed, NotFound
from teal.host.wire import Spec
from teal.kernel.protocol import Outcome, Source, check_inputs
from teal.kernel.strings import is_strings, pack

F = TypeVar("F", bound=Callable[..., Any])
Shape = Sequence[int | str | None]
Tensors = Mapping[str, tuple[str | None, Shape | None]]


def signature(*, inputs: Tensors, outputs: Tensors, pure: bool = False) -> Callable[[F], F]:
    """Declares a function kernel's tensors: name → (dtype, shape); shape entries are ints, symbolic names or None.

    ``pure``: the function has no effects, so that it may run again after a crash. Raises InvalidArgument for an
    unknown dtype.
    """
    declared = (_specs(inputs, "inputs"), _specs(outputs, "outputs"), pure)

    def mark(function: F) -> F:
        function.__teal_signature__ = declared  # type: ignore[attr-defined]
        return function

    return mark


def _specs(tensors: Tensors, side: str) -> list[Spec]:
    specs = []
    for name, (dtype, shape) in tensors.items():
        if dtype is not None:
            try:
                dtype_size(dtype)
            except InvalidArgument as error:
                raise InvalidArgument(str(error), path=f"$.{side}[{name!r}]") from None
        specs.append(Spec(name, dtype, None if shape is None else list(shape)))
    return specs


def _found(reference: str) -> Callable[..., Any]:
    module_name, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise NotFound(
            f"function {reference!r}: {error}; the worker imports it, so it must be on the worker's path"
        ) from None
    except Exception as error:
        raise KernelFailed(f"importing {module_name}: {type(error).__name__}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise NotFound(f"function {reference!r}: {module_name} has no {path!r}")
        found = getattr(found, part)
    if inspect.isclass(found):
        found = found()
    if not callable(found):
        raise InvalidArgument(f"{reference!r} is {type(found).__name__}, expected a function or a class with __call__")
    return found  # type: ignore[no-any-return]


class FunctionKernel:
    """See the module."""

    def __init__(self, source: Source) -> None:
        self._function = _found(source.reference)
        declared = getattr(self._function, "__teal_signature__", None) or getattr(
            type(self._function).__call__, "__teal_signature__", None
        )
        if declared is not None:
            self.inputs, self.outputs, self.pure = declared
        else:
            self.inputs = self._guessed_inputs(source.reference)
            self.outputs = [Spec("output")]
            self.pure = False

    def _guessed_inputs(self, reference: str) -> list[Spec]:
        specs = []
        for parameter in inspect.signature(self._function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidArgument(f"{reference!r} takes *{parameter.name}: give it a @teal.signature")
            specs.append(Spec(parameter.name, optional=parameter.default is not parameter.empty))
        return specs

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome]:
        check_inputs(self.inputs, slot)
        views = {
            spec.name: tensor.numpy()
            for spec, tensor in zip(self.inputs, slot.inputs, strict=True)
            if tensor is not None and tensor.dtype != "BYTES"
        }
        # Strings are decoded anew for each request: their places are the same, their contents are not.
        texts = {
            spec.name: tensor
            for spec, tensor in zip(self.inputs, slot.inputs, strict=True)
            if tensor is not None and tensor.dtype == "BYTES"
        }
        function = self._function

        def run() -> Outcome:
            for name, tensor in texts.items():
                slot.count_copy_in(tensor.nbytes)
                views[name] = tensor.numpy()
            return self._ordered(function(**views))

        return run

    def _ordered(self, returned: Any) -> list[Any]:
        names = [spec.name for spec in self.outputs]
        if isinstance(returned, Mapping):
            missing = [name for name in names if name not in returned]
            if missing or len(returned) != len(names):
                raise InvalidArgument(f"the function returned {sorted(map(str, returned))}, expected {names}")
            values = [returned[name] for name in names]
        elif len(names) == 1 and not (isinstance(returned, tuple) and len(returned) == 1):
            values = [returned]
        elif isinstance(returned, (tuple, list)) and len(returned) == len(names):
            values = list(returned)
        else:
            raise InvalidArgument(
                f"the function returned {type(returned).__name__}, expected {len(names)} outputs: {names}"
            )
        return [_stored(value, spec) for value, spec in zip(values, self.outputs, strict=True)]

    def close(self) -> None:
        closer = getattr(self._function, "close", None)
        if callable(closer):
            closer()


def _stored(value: Any, spec: Spec) -> Any:
    if value is None:
        raise InvalidArgument(f"the function returned None for output {spec.name!r}")
    if spec.dtype == "BYTES" or is_strings(value):
        return pack(value)
    array = np.asarray(value)
    if array.dtype == object:
        raise InvalidArgument(f"output {spec.name!r} is an object array, expected numbers or strings")
    return np.ascontiguousarray(array).reshape(array.shape)
