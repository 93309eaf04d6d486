"""A Python callable as a resident kernel: ``package.module:name``.

The callable gets NumPy views of the inputs by name (read-only, in place; strings: an object array of bytes, a copy) and
returns one array, a tuple or a mapping of arrays; what it returns is copied into the slot once, and counted. A class is
instantiated at load and its instance called, so that state stays resident; its ``close()``, if it has one, is called at
unload. A signature makes shapes known before the run, catches mistakes at the caller, and holds the function to it:

    @teal.signature(inputs={"x": ("float32", ("n", 3))}, outputs={"y": ("float32", ("n",))})
    def norm(x): return np.linalg.norm(x, axis=1)

Without one, inputs are the callable's parameters, of any dtype and shape (those with a default may be left out), and
there is one output, ``output``. A function may have effects: it is never run again after a worker died, nor run after a
successful cancel(), unless it was loaded as idempotent.

A function may fork, but one process comes back: a child that returns or raises ends there.

A generator function answers with what it *returns*; what it yields means nothing. Each yield is a place where the
request may leave its worker to others and go on later, in the same process: in between, others run there, of the same
function too. It is closed (GeneratorExit at the yield, ``finally`` blocks run) when its request ends before it does.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from teal._core import Tensor, WorkerSlot, describe
from teal.errors import InvalidArgument, KernelFailed, NotFound
from teal.host import argument
from teal.host.wire import Spec
from teal.kernel.protocol import MAX_RANK, Outcome, Source, check_inputs, check_shape
from teal.kernel.strings import is_strings, pack

F = TypeVar("F", bound=Callable[..., Any])
Shape = Sequence[int | str | None]
Tensors = Mapping[str, tuple[DTypeLike | None, Shape | None]]


def signature(*, inputs: Tensors, outputs: Tensors, pure: bool = False) -> Callable[[F], F]:
    """Declares a function kernel's tensors: name → (dtype, shape); shape entries are ints, symbolic names or None.

    A dtype is a name, or NumPy's (``np.float32``). A dtype or shape of None stands for any. ``pure``: the function has
    no effects, so that it may run again after a crash, and its result may be dropped. Raises InvalidArgument for what
    is no such declaration.
    """
    declared = (_specs(inputs, "inputs"), _specs(outputs, "outputs"), bool(pure))

    def mark(function: F) -> F:
        function.__teal_signature__ = declared  # type: ignore[attr-defined]
        return function

    return mark


def _specs(tensors: Tensors, side: str) -> list[Spec]:
    specs = []
    for name, entry in tensors.items():
        path = f"$.{side}[{name!r}]"
        if not isinstance(entry, (tuple, list)) or len(entry) != 2:
            raise InvalidArgument(f"{entry!r}, expected (dtype, shape)", path=path)
        given, shape = entry
        dtype = None if given is None else argument.dtype(given, path)
        if shape is not None and not _is_shape(shape):
            raise InvalidArgument(
                f"shape {shape!r}, expected at most {MAX_RANK} entries: 0 or more, a name, or None", path=path
            )
        specs.append(Spec(name, dtype, None if shape is None else list(shape)))
    return specs


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, (tuple, list))
        and len(shape) <= MAX_RANK
        and all(e is None or isinstance(e, str) or (isinstance(e, int) and e >= 0) for e in shape)
    )


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
        try:
            found = found()
        except Exception as error:
            raise KernelFailed(f"making an instance of {reference}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise InvalidArgument(f"{reference!r} is {type(found).__name__}, expected a function or a class with __call__")
    code = found if inspect.isroutine(found) else type(found).__call__
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise InvalidArgument(
            f"{reference!r} is a coroutine or async generator, expected a function that returns its outputs, or a "
            "generator function"
        )
    return found  # type: ignore[no-any-return]


class FunctionKernel:
    """See the module."""

    def __init__(self, source: Source) -> None:
        self._function = _found(source.reference)
        self._by_place: list[str] = []  # parameters that cannot be given by name
        function = self._function
        yields = inspect.isgeneratorfunction(function if inspect.isroutine(function) else type(function).__call__)
        self.preemption = "yields" if yields else "none"
        declared = getattr(self._function, "__teal_signature__", None) or getattr(
            type(self._function).__call__, "__teal_signature__", None
        )
        if declared is not None:
            self.inputs, self.outputs, self.pure = declared
            self._check_parameters(source.reference)
        else:
            self.inputs = self._guessed_inputs(source.reference)
            self.outputs = [Spec("output")]
            self.pure = False

    def _parameters(self, reference: str) -> inspect.Signature:
        try:
            return inspect.signature(self._function)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"{reference!r} does not say what it takes: wrap it, with a @teal.signature"
            ) from None

    def _check_parameters(self, reference: str) -> None:
        try:
            self._parameters(reference).bind(**{spec.name: None for spec in self.inputs})
        except TypeError as error:
            raise InvalidArgument(f"{reference!r} does not take the inputs of its @teal.signature: {error}") from None

    def _guessed_inputs(self, reference: str) -> list[Spec]:
        specs = []
        for parameter in self._parameters(reference).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidArgument(f"{reference!r} takes {parameter}: give it a @teal.signature")
            if parameter.kind == parameter.POSITIONAL_ONLY:
                self._by_place.append(parameter.name)
            specs.append(Spec(parameter.name, optional=parameter.default is not parameter.empty))
        return specs

    def bind(self, slot: WorkerSlot) -> Callable[[], Outcome | Generator[Any, None, Outcome]]:
        extents = check_inputs(self.inputs, slot)
        given = [(spec.name, t) for spec, t in zip(self.inputs, slot.inputs, strict=True) if t is not None]
        views = {name: tensor.numpy() for name, tensor in given if tensor.dtype != "BYTES"}
        # Strings are decoded anew for each request: their places are the same, their contents are not.
        texts: list[tuple[str, Tensor]] = [(name, tensor) for name, tensor in given if tensor.dtype == "BYTES"]
        function = self._function

        def called() -> Any:
            for name, tensor in texts:
                slot.count_copy_in(tensor.nbytes)
                views[name] = tensor.numpy()
            if not self._by_place:
                return function(**views)
            named = dict(views)
            placed = [named.pop(name) for name in self._by_place if name in named]
            return function(*placed, **named)

        def run() -> Outcome:
            return self._ordered(called(), extents)

        def steps() -> Generator[Any, None, Outcome]:
            return self._ordered((yield from called()), extents)

        return steps if self.preemption == "yields" else run

    def _ordered(self, returned: Any, extents: Mapping[str, int]) -> list[Any]:
        names = [spec.name for spec in self.outputs]
        if isinstance(returned, Mapping):
            if set(returned) != set(names):
                raise InvalidArgument(f"the function returned {sorted(map(str, returned))}, expected {names}")
            values = [returned[name] for name in names]
        elif len(names) == 1 and not (isinstance(returned, tuple) and len(returned) == 1):
            values = [returned]
        elif isinstance(returned, (tuple, list)):
            if len(returned) != len(names):
                raise InvalidArgument(f"the function returned {len(returned)} outputs, expected {len(names)}: {names}")
            values = list(returned)
        else:
            raise InvalidArgument(
                f"the function returned {type(returned).__name__}, expected {len(names)} outputs: {names}"
            )
        fixed = dict(extents)  # an output may fix extents for the ones after it
        return [
            _stored(value, spec, f"$.outputs[{i}]", fixed)
            for i, (value, spec) in enumerate(zip(values, self.outputs, strict=True))
        ]

    def close(self) -> None:
        closer = getattr(self._function, "close", None)
        if callable(closer):
            closer()


def _stored(value: Any, spec: Spec, path: str, extents: dict[str, int]) -> Any:
    """What the core stores for this output. Raises InvalidArgument when its signature does not allow the value."""
    if value is None:
        raise InvalidArgument(f"the function returned None for output {spec.name!r}", path=path)
    stored: Any
    shape: Sequence[int]
    if spec.dtype == "BYTES" or is_strings(value):
        stored = shape, _ = pack(value, path)
        dtype = "BYTES"
    else:
        stored, dtype, shape = _array(value, spec, path)
    if spec.dtype is not None and dtype != spec.dtype:
        raise InvalidArgument(f"{dtype}, output {spec.name!r} is declared as {spec.dtype}", path=f"{path}.dtype")
    if len(shape) > MAX_RANK:
        raise InvalidArgument(f"rank {len(shape)}, expected at most {MAX_RANK}", path=f"{path}.shape")
    check_shape(spec, shape, extents, path, "output")
    return stored


def _array(value: Any, spec: Spec, path: str) -> tuple[Any, str, tuple[int, ...]]:
    """(array that the core can read in one piece, dtype, shape)"""
    array = value
    if isinstance(value, np.ndarray) and hasattr(value, "mask"):
        raise InvalidArgument(
            f"output {spec.name!r} is a masked array, which would lose its mask; give .filled(…)", path=path
        )
    if not hasattr(value, "__dlpack__") or isinstance(value, (np.ndarray, np.generic)):
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"output {spec.name!r} is {type(value).__name__}: {error}", path=path) from None
        if array.dtype == object:
            raise InvalidArgument(
                f"output {spec.name!r} is {type(value).__name__}: an object array, expected numbers or strings",
                path=path,
            )
        array = np.ascontiguousarray(array).reshape(array.shape)
    try:
        dtype, shape, contiguous = describe(array)
    except TypeError:
        kind = getattr(array, "dtype", type(array).__name__)
        raise InvalidArgument(
            f"output {spec.name!r} is {kind}, not one of Teal's dtypes", path=f"{path}.dtype"
        ) from None
    if not contiguous:  # torch
        array = array.contiguous() if hasattr(array, "contiguous") else np.ascontiguousarray(array)
    return array, dtype, shape
