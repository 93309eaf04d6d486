"""What every compute device can do, in the same words: import, launch, stay resident, fence.

Theory of operation. A `Device` imports whole regions without a copy, builds `Program`s from the source of one task, and
runs them over places in imported regions. A `Launch` is prepared once and started many times: that is the per-launch
path. `Program.start` launches the resident kernel, which teal.device.resident keeps and relaunches: that is the other
path. Devices differ in how they do these few things and in nothing else; tests run the same cases on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from teal.device.region import MappedRegion
from teal.errors import InvalidArgument

Copying = Literal["none", "copies", "graph", "graph-copies"]
PLACE_ALIGN = 8


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What was found out about a device by trying, not by asking."""

    coherent: (
        bool  # a launch sees what the host stored before it, and the host its stores after it, with no call between
    )
    live: bool  # a running kernel and the host see each other's stores: what a resident kernel needs
    workers: int  # work-items that share a task: 1 on CPUs
    fences: str  # "clang", "opencl2 all-devices", "opencl2 device", "cuda", "core": how the kernel orders memory
    clock_ns: float  # of one unit of the kernel's clock, which bounds its idle time
    clock: str  # "cycles", "polls", "ns"
    note: str = ""


class Imported(Protocol):
    """A region as a device knows it."""

    @property
    def region(self) -> MappedRegion: ...

    @property
    def copied(self) -> bool:
        """The device works on a copy: only where the import allowed it, and counted in the device's statistics."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of an imported region: offset and length, both in bytes, offset a multiple of 8 (64 for a line)."""

    imported: Imported
    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        size = self.imported.region.nbytes
        if self.offset % PLACE_ALIGN or self.offset < 0:
            raise InvalidArgument(f"place: offset {self.offset}, expected a multiple of {PLACE_ALIGN}")
        if self.nbytes < 0 or self.nbytes > size or self.offset > size - self.nbytes:
            raise InvalidArgument(
                f"place: {self.nbytes} bytes at {self.offset} do not lie in the region's {size} bytes"
            )


@dataclass(frozen=True, slots=True)
class Task:
    """One run of a program's task: where its bytes are, and how many items. out1 may be the same place as out0."""

    weights: Place
    input: Place
    out0: Place
    out1: Place
    batch: int
    items: int = 0  # items a group takes on a device with many groups (launches only); 0: all in one group
    strides: tuple[int, int, int] = (0, 0, 0)  # bytes an item in input, out0, out1; needed with `items`

    def __post_init__(self) -> None:
        if not 0 <= self.batch < 1 << 32:
            raise InvalidArgument(f"task: batch {self.batch}, expected 0 to {(1 << 32) - 1}")
        if self.items < 0 or min(self.strides) < 0 or (self.items and not self.strides[0]):
            raise InvalidArgument("task: items and strides must not be negative, and items needs strides")

    @property
    def places(self) -> tuple[Place, Place, Place, Place]:
        return self.weights, self.input, self.out0, self.out1

    @property
    def groups(self) -> int:
        return max(1, -(-self.batch // self.items)) if self.items else 1


class Started(Protocol):
    """Something started on a device."""

    def done(self) -> bool:
        """True once it has ended. Raises KernelFailed if it ended badly."""
        ...

    def wait(self) -> None:
        """Returns when it has ended; its stores are then visible to the host. Raises KernelFailed if it ended badly."""
        ...


class Launch(Protocol):
    """A task that is ready to be started by one call of the driver."""

    def start(self) -> Started: ...

    def run(self) -> None:
        """start() and wait(), at the least cost the device allows."""
        ...


class Program(Protocol):
    """A built task."""

    @property
    def device(self) -> Device: ...

    def prepare(self, task: Task, copying: Copying = "none") -> Launch:
        """A launch over the regions in place; "copies": inputs and outputs go through device memory; "graph",
        "graph-copies": the same two, recorded once and replayed.

        Raises InvalidArgument where the device cannot do that.
        """
        ...

    def start(self, directory: Imported, regions: Sequence[Imported | None]) -> Started:
        """Launches the resident kernel over up to 64 regions (None: a number not in use); it is over when the kernel
        has left."""
        ...


class Device(Protocol):
    """An open compute device. A context manager; not for use after fork."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def parts(self) -> int:
        """How many kernels of one group run at the same time: a resident kernel takes one part."""
        ...

    def import_region(self, region: MappedRegion, *, copies: bool = False) -> Imported:
        """Makes a whole region known to the device, without a copy, and proves it.

        copies: a copy is allowed where the device cannot do without; it is counted in statistics().

        Raises InvalidArgument for memory off the alignment rules, KernelFailed where the device copied and was not
        allowed to, or refused.
        """
        ...

    def hold(self, region: MappedRegion) -> Imported:
        """A region that never changes again (weights), where the device reads it best.

        A card with memory of its own takes a copy into it, once (counted as `held` in statistics()); others import.
        """
        ...

    def build(self, source: str, scratch: int = 16384) -> Program:
        """Compiles the source of one `teal_task`; scratch: bytes that its group of workers shares.

        Raises KernelFailed with the compiler's words.
        """
        ...

    def fence(self) -> None:
        """Returns when everything launched so far has ended and is visible to the host."""
        ...

    def statistics(self) -> dict[str, int]: ...

    def close(self) -> None: ...

    def __enter__(self) -> Device: ...

    def __exit__(self, *exc: object) -> None: ...
