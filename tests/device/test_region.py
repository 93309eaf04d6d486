from __future__ import annotations

import os

import numpy as np
import pytest

from teal.device import MappedRegion
from teal.errors import InvalidArgument


def page_aligned(nbytes: int) -> tuple[np.ndarray, int]:
    memory = np.zeros(nbytes + 4096, np.uint8)
    return memory, -memory.ctypes.data % 4096


@pytest.mark.parametrize(("nbytes", "offset"), [(4095, 0), (4096, 64), (8192, 1), (0, 0)])
def test_memory_off_the_rules_is_refused(nbytes: int, offset: int) -> None:
    memory, start = page_aligned(3 * 4096)
    with pytest.raises(InvalidArgument, match="expected a multiple of 4096: import the whole region"):
        MappedRegion(memory[start + offset : start + offset + nbytes])


def test_whole_pages_are_taken() -> None:
    memory, start = page_aligned(8192)
    region = MappedRegion(memory[start : start + 8192])
    region.array(4096, (4,), np.uint32)[:] = 7
    assert memory[start + 4096] == 7


def test_a_region_is_rounded_up_to_pages_and_zero() -> None:
    region = MappedRegion.create(5000)
    assert region.nbytes == 8192
    assert not region.bytes.any()


def test_a_descriptor_is_mapped_and_stays_the_callers() -> None:
    fd = os.memfd_create("test")
    try:
        os.ftruncate(fd, 4096)
        one, other = MappedRegion.map(fd), MappedRegion.map(fd, writable=False)
        one.bytes[9] = 5
        assert other.bytes[9] == 5
        with pytest.raises(ValueError, match="read-only"):
            other.bytes[0] = 1
        os.fstat(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("offset", "shape"), [(-4, (1,)), (4096, (1,)), (4093, (1,)), (0, (1 << 62, 1 << 62)), (0, (1025,))]
)
def test_a_view_must_lie_in_the_region(offset: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="does not lie in"):
        MappedRegion.create(4096).array(offset, shape, np.uint32)


@pytest.mark.parametrize("probe_at", [-64, 32, 4096 - 64, 1 << 40])
def test_the_place_of_the_probe_must_lie_in_the_region(probe_at: int) -> None:
    memory, start = page_aligned(4096)
    with pytest.raises(InvalidArgument, match="probe_at"):
        MappedRegion(memory[start : start + 4096], probe_at=probe_at)
