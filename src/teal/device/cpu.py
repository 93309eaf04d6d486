"""The cores of this machine as a device: the same words, no driver, no copy. Programs are tasks of the core, by name.

Its resident kernel is a thread that runs the very source which OpenCL and CUDA compile (core/device/resident.cpp), so
what holds for it here is what tests and sanitizers can look into.
"""

from __future__ import annotations

from collections.abc import Sequence

from teal import _core
from teal.device.protocol import Capabilities, Copying, Imported, Task
from teal.device.region import MappedRegion
from teal.errors import Closed, InvalidArgument


class CpuImported:
    def __init__(self, region: MappedRegion) -> None:
        self.region, self.copied, self.closed = region, False, False

    def close(self) -> None:
        self.closed = True


def address_of(imported: Imported) -> int:
    if not isinstance(imported, CpuImported) or imported.closed:
        raise InvalidArgument("region: not imported into the cpu device, or closed")
    return imported.region.address


class CpuEvent:
    """A launch, which is over when it has started; or a resident kernel's thread. Holds on to what the thread uses."""

    def __init__(self, run: _core.CpuRun | None = None, held: object = None) -> None:
        self._run, self._held = run, held

    def done(self) -> bool:
        return self._run is None or self._run.done()

    def wait(self) -> None:
        if self._run is not None:
            self._run.wait()


class CpuLaunch:
    def __init__(self, kernel: _core.CpuKernel, task: Task) -> None:
        self._kernel, self._task = kernel, task
        self._parts = [address_of(place.imported) + place.offset for place in task.places]

    def start(self) -> CpuEvent:
        self.run()
        return CpuEvent()

    def run(self) -> None:
        self._kernel.launch(self._parts, self._task.batch)


class CpuProgram:
    def __init__(self, device: CpuDevice, kernel: _core.CpuKernel) -> None:
        self._device, self._kernel = device, kernel

    @property
    def device(self) -> CpuDevice:
        return self._device

    def prepare(self, task: Task, copying: Copying = "none") -> CpuLaunch:
        if copying != "none":
            raise InvalidArgument(f'launch: {copying!r} on the cpu device, expected "none": its memory is the host\'s')
        return CpuLaunch(self._kernel, task)

    def start(self, directory: Imported, regions: Sequence[Imported | None]) -> CpuEvent:
        addresses = [0 if each is None else address_of(each) for each in regions]
        run = self._kernel.start(address_of(directory), addresses, self._device.cores)
        return CpuEvent(run, (directory, tuple(regions)))


class CpuDevice:
    """The cpu device; cores: where resident kernels run, by default wherever the system likes."""

    def __init__(self, cores: set[int] | None = None) -> None:
        self.name, self.cores = "cpu", cores or set()
        self.capabilities = Capabilities(True, True, 1, "core", 1.0, "ns")
        self.parts = 1 << 16  # threads of their own
        self._counts = {"imports": 0, "copied_imports": 0, "builds": 0}
        self._closed = False

    def import_region(self, region: MappedRegion, *, copies: bool = False) -> CpuImported:
        if self._closed:
            raise Closed("cpu: it was closed")
        self._counts["imports"] += 1
        return CpuImported(region)

    def hold(self, region: MappedRegion) -> CpuImported:
        return self.import_region(region)

    def build(self, source: str, scratch: int = 0) -> CpuProgram:
        """source: the name of a task of the core ("identity", "scale"). Raises NotFound for others."""
        kernel = _core.CpuKernel(source)
        self._counts["builds"] += 1
        return CpuProgram(self, kernel)

    def fence(self) -> None:
        """Launches are over when they have started."""

    def statistics(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> CpuDevice:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
