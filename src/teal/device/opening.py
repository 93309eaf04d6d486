"""Which devices are here, and opening one by its name."""

from __future__ import annotations

from dataclasses import dataclass

from teal.device.protocol import Device
from teal.errors import InvalidArgument, NotFound, TealError


@dataclass(frozen=True, slots=True)
class Found:
    """A device, or the reason why there is none."""

    name: str  # what open() takes
    what: str  # the device in its driver's words, or what is missing and how to get it
    available: bool


def devices(kind: str | None = None) -> tuple[Found, ...]:
    """All devices here, or those of a kind ("cpu", "opencl", "cuda"), and why those are missing that could be here.

    Raises nothing but InvalidArgument, for another kind.
    """
    finders = {"cpu": _cpu, "opencl": _opencl, "cuda": _cuda}
    if kind is not None and kind not in finders:
        raise InvalidArgument(f"kind {kind!r}, expected cpu, opencl or cuda")
    return tuple(found for name, find in finders.items() if kind in (None, name) for found in find())


def _cpu() -> list[Found]:
    return [Found("cpu", "the cores of this machine", True)]


def _opencl() -> list[Found]:
    from teal.device import opencl  # loads a driver

    try:
        return [
            Found(f"opencl:{opencl.short_name(raw)}", f"{raw.name} ({raw.version})", True)
            for raw in opencl.raw_devices()
        ]
    except TealError as error:
        return [Found("opencl", str(error), False)]


def _cuda() -> list[Found]:
    from teal.device import cuda

    try:
        return [Found(f"cuda:{number}", name, True) for number, name in enumerate(cuda.names())]
    except TealError as error:
        return [Found("cuda", str(error), False)]


def open(name: str, *, cores: set[int] | None = None) -> Device:
    """Opens "cpu", "opencl", "opencl:pocl", "opencl:intel", "cuda" or "cuda:0"; a name without a part takes the first.

    cores: to which cores a device that is this machine's CPU keeps its threads.

    Raises NotFound where there is no such device, KernelFailed where its driver does not work, InvalidArgument for
    other names.
    """
    kind, _, part = name.partition(":")
    if kind == "cpu" and not part:
        from teal.device.cpu import CpuDevice

        return CpuDevice(cores)
    if kind == "opencl":
        from teal.device import opencl

        fitting = [raw for raw in opencl.raw_devices() if part in ("", opencl.short_name(raw))]
        if not fitting:
            here = ", ".join(found.name for found in devices() if found.available)
            raise NotFound(f"device {name!r}: no driver of that name; here are {here}")
        return opencl.OpenClDevice(fitting[0], cores)
    if kind == "cuda" and (not part or part.isdecimal()):
        from teal.device import cuda

        return cuda.CudaDevice(int(part or 0))
    raise InvalidArgument(f"device {name!r}, expected cpu, opencl, opencl:pocl, opencl:intel, cuda or cuda:NUMBER")
