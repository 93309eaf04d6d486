"""One device of each kind that is here, and a small setting on it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from teal import _core, device
from teal.device import MappedRegion, Place, Resident, Task, source
from teal.device.protocol import Device, Program
from teal.errors import TealError

KINDS = ("cpu", "opencl:pocl", "opencl:intel")
FLOATS = 16
FIRST, STEP = 8192, 4096


def task_source(opened: Device, name: str) -> str:
    return name if opened.name == "cpu" else source.text(f"{name}.cl")


@dataclass
class Setting:
    """A device with a region; slot n has a line, a weight, an input x and an output y, all for the scale task."""

    device: Device
    region: MappedRegion
    imported: Any
    program: Program

    def place(self, slot: int, part: int, nbytes: int = FLOATS * 4) -> Place:
        return Place(self.imported, FIRST + slot * STEP + part * 256, nbytes)

    def task(self, slot: int, batch: int = FLOATS) -> Task:
        return Task(self.place(slot, 1), self.place(slot, 2), self.place(slot, 3), self.place(slot, 4), batch)

    def line_place(self, slot: int) -> Place:
        return self.place(slot, 0, 128)

    def line(self, slot: int) -> _core.DeviceLine:
        return _core.DeviceLine(self.region.bytes, FIRST + slot * STEP)

    def words(self, slot: int) -> np.ndarray[Any, Any]:
        return self.region.array(FIRST + slot * STEP, (32,), np.uint32)

    def floats(self, slot: int, part: int) -> np.ndarray[Any, Any]:
        return self.region.array(FIRST + slot * STEP + part * 256, (FLOATS,), np.float32)

    def serve(
        self, resident: Resident, slot: int
    ) -> tuple[_core.DeviceLine, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Adds the slot's line; returns it with its weights and its output. x is 0, 1, 2 …"""
        self.floats(slot, 2)[:] = np.arange(FLOATS)
        resident.add(self.line_place(slot), self.task(slot))
        return self.line(slot), self.floats(slot, 1), self.floats(slot, 3)


@pytest.fixture(scope="session", params=KINDS)
def opened(request: pytest.FixtureRequest) -> Iterator[Device]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = device.open(request.param)
    except TealError as error:
        pytest.skip(f"no {request.param} here: {str(error).splitlines()[0][:200]}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def scale(opened: Device) -> Program:
    return opened.build(task_source(opened, "scale"))


@pytest.fixture
def setting(opened: Device, scale: Program) -> Iterator[Setting]:
    region = MappedRegion.create(1 << 18)
    imported = opened.import_region(region)
    yield Setting(opened, region, imported, scale)
    imported.close()
