"""Compute devices in this process: one memory, one task source, two ways to run it.

    from teal import device
    with device.open("opencl:pocl") as gpu:
        region = device.MappedRegion.create(1 << 20)
        ...

`devices()` says what is here and what is missing; `open(name)` opens one. A task is run either by a *launch* (one trip
through the driver each) or by a *resident kernel* that stays on the device and polls control lines in shared memory.
Theory and rules: docs/devices.md.
"""

from teal.device.directory import Directory
from teal.device.opening import Found, devices, open
from teal.device.protocol import Capabilities, Device, Imported, Launch, Place, Program, Task
from teal.device.region import MappedRegion
from teal.device.resident import Resident

__all__ = [
    "Capabilities",
    "Device",
    "Directory",
    "Found",
    "Imported",
    "Launch",
    "MappedRegion",
    "Place",
    "Program",
    "Resident",
    "Task",
    "devices",
    "open",
]
