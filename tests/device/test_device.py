"""What every device does alike: regions, launches, resident kernels."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

from teal import _core, device
from teal.device import MappedRegion, Place, Resident, Task
from teal.device.directory import REGIONS
from teal.device.protocol import Device
from teal.errors import Closed, InvalidArgument, KernelFailed, NotFound, QuotaExceeded

from .conftest import FLOATS, Setting, task_source

PARKED, LATE = 3, 5


def test_what_the_device_can(opened: Device) -> None:
    can = opened.capabilities
    assert can.coherent
    assert can.live
    assert can.note == ""
    assert can.workers == 1
    assert can.fences in {"core", "clang"}


def test_an_import_copies_nothing(setting: Setting) -> None:
    launch, x, y = setting.program.prepare(setting.task(0)), setting.floats(0, 2), setting.floats(0, 3)
    x[:] = np.arange(FLOATS)
    for factor in range(20):
        setting.floats(0, 1)[0] = factor  # stored after the import
        launch.run()
        assert (y == x * factor).all()
    assert not setting.imported.copied
    assert setting.device.statistics()["copied_imports"] == 0


def test_an_import_leaves_the_regions_bytes_alone(opened: Device) -> None:
    region = MappedRegion.create(8192)
    region.bytes[:] = np.arange(8192) % 251
    opened.import_region(region).close()
    assert (region.bytes == np.arange(8192) % 251).all()


def test_a_closed_import_is_refused(setting: Setting, opened: Device) -> None:
    imported = opened.import_region(MappedRegion.create(4096))
    place = Place(imported, 0, 64)
    imported.close()
    imported.close()
    with pytest.raises(InvalidArgument, match="closed"):
        setting.program.prepare(Task(place, place, place, place, 1))


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(4, 64), (-64, 64), (1 << 18, 64), ((1 << 18) - 64, 65), (0, -1), (0, 1 << 70)]
)
def test_a_place_must_lie_in_its_region(setting: Setting, offset: int, nbytes: int) -> None:
    with pytest.raises(InvalidArgument, match="place: "):
        Place(setting.imported, offset, nbytes)


@pytest.mark.parametrize("batch", [-1, 1 << 32])
def test_a_batch_must_fit_its_word(setting: Setting, batch: int) -> None:
    with pytest.raises(InvalidArgument, match="batch"):
        setting.task(0, batch)


def test_an_event_ends(setting: Setting) -> None:
    event = setting.program.prepare(setting.task(0)).start()
    event.wait()
    assert event.done()
    setting.device.fence()


def test_out1_may_be_out0_and_a_batch_empty(setting: Setting) -> None:
    parts = [setting.place(1, part) for part in (1, 2, 3, 3)]
    y = setting.floats(1, 3)
    y[:] = 9
    setting.program.prepare(Task(*parts, 0)).run()
    assert (y == 9).all()
    setting.program.prepare(Task(*parts, FLOATS)).run()
    assert not y.any()


def test_other_sources_are_refused_in_the_compilers_words(opened: Device) -> None:
    with pytest.raises((KernelFailed, NotFound), match=r"does not compile|expected identity or scale"):
        opened.build("TEAL_TASK void teal_task(int nonsense")


# --- resident kernels ---------------------------------------------------------------------------------


def test_a_resident_kernel_answers(setting: Setting) -> None:
    with Resident(setting.program, idle=0.2) as resident:
        line, weights, y = setting.serve(resident, 0)
        x = setting.floats(0, 2)
        for factor in range(3000):
            weights[0], x[0] = factor, factor & 255
            resident.run(line)
            assert y[0] == (factor & 255) * factor
            assert y[FLOATS - 1] == (FLOATS - 1) * factor
        found = resident.statistics()
    assert found["runs"] == 3000
    assert found["lost"] == 0


def test_many_lines_each_get_their_own_answer(setting: Setting) -> None:
    with Resident(setting.program, idle=0.2) as resident:
        served = [setting.serve(resident, slot) for slot in range(40)]
        resident.wake()
        for factor in range(20):
            asked = []
            for number, (line, weights, _) in enumerate(served):
                weights[0] = factor * 100 + number
                asked.append(line.ask())
            for number, (line, _, y) in enumerate(served):
                while line.wait(asked[number], 2_000_000_000) == PARKED:
                    resident.wake()
                assert y[2] == 2 * (factor * 100 + number)


def test_it_parks_when_idle_and_comes_back(setting: Setting) -> None:
    with Resident(setting.program, idle=0.001) as resident:
        line, weights, y = setting.serve(resident, 0)
        for factor in range(1, 6):
            weights[0] = factor
            resident.run(line)
            assert y[1] == factor
            while not resident.parked:
                time.sleep(0.0005)
            assert line.state == 0
            assert line.run() == PARKED
        assert resident.statistics()["launches"] >= 5


def test_no_request_is_lost_while_it_parks(setting: Setting) -> None:
    """Requests come around the end of the idle time, so that many meet the kernel just leaving."""
    chance = random.Random(11)
    with Resident(setting.program, idle=0.0001) as resident:
        line, weights, y = setting.serve(resident, 0)
        for factor in range(800):
            weights[0] = factor
            resident.run(line, timeout=10)
            assert y[3] == 3 * factor
            until = time.perf_counter_ns() + chance.randrange(200_000)
            while time.perf_counter_ns() < until:
                pass
        assert resident.statistics()["runs"] == 800  # each once
        assert resident.statistics()["launches"] > 1


def test_told_to_quit_it_leaves_and_a_standing_request_is_served_later(setting: Setting) -> None:
    with Resident(setting.program, idle=60) as resident:
        line, weights, y = setting.serve(resident, 0)
        resident.run(line)
        resident.quit()
        assert resident.parked
        weights[0] = 5
        generation = line.ask()
        assert line.wait(generation, 1_000_000_000) == PARKED
        resident.wake()
        assert line.wait(generation, 10_000_000_000) == 0
        assert y[2] == 10


def test_a_new_line_is_seen_by_a_running_kernel(setting: Setting) -> None:
    with Resident(setting.program, idle=30) as resident:
        first, _, _ = setting.serve(resident, 0)
        resident.run(first)
        second, weights, y = setting.serve(resident, 1)
        weights[0] = 4
        resident.run(second)
        assert y[1] == 4
        assert resident.statistics()["launches"] == 1


def test_a_line_of_a_new_region_is_served_by_another_launch(setting: Setting, opened: Device) -> None:
    region = MappedRegion.create(1 << 14)
    imported = opened.import_region(region)
    parts = [Place(imported, 4096 + at, 64) for at in (0, 256, 512, 768)]
    with Resident(setting.program, idle=30) as resident:
        first, _, _ = setting.serve(resident, 0)
        resident.run(first)
        resident.add(Place(imported, 8192, 128), Task(*parts, FLOATS))
        region.array(4096, (1,), np.float32)[0] = 3
        region.array(4096 + 256, (FLOATS,), np.float32)[:] = 2
        resident.run(_core.DeviceLine(region.bytes, 8192))
        assert (region.array(4096 + 512, (FLOATS,), np.float32) == 6).all()
        resident.run(first)
        assert resident.statistics()["relaunched_for_regions"] == 1
    imported.close()


def test_a_removed_line_is_left_alone(setting: Setting) -> None:
    with Resident(setting.program, idle=30) as resident:
        keep, _, _ = setting.serve(resident, 0)
        line, weights, y = setting.serve(resident, 1)
        resident.run(line)
        resident.remove(1)
        weights[0], y[1] = 7, -1
        assert line.run() == PARKED
        resident.run(keep)
        assert y[1] == -1
        again, _, _ = setting.serve(resident, 1)
        resident.run(again)
        assert y[1] == 7
        with pytest.raises(InvalidArgument, match="no line has the number 99"):
            resident.remove(99)


def test_a_line_taken_over_is_not_run_again(setting: Setting) -> None:
    words = setting.words(0)
    words[0] = words[16] = 41  # asked and answered by an earlier worker
    with Resident(setting.program, idle=0.2) as resident:
        line, weights, y = setting.serve(resident, 0)
        weights[0], y[1] = 2, -1
        resident.wake()
        resident.check()
        assert y[1] == -1
        resident.run(line)
        assert (line.done, y[1]) == (42, 2)


def test_a_hostile_client_disturbs_its_own_line_only(setting: Setting) -> None:
    stop = threading.Event()
    words = setting.words(1)

    def flood() -> None:
        chance = np.random.default_rng(3)
        while not stop.is_set():
            words[:] = chance.integers(0, 1 << 32, 32, np.uint32)

    with Resident(setting.program, idle=0.2) as resident:
        line, weights, y = setting.serve(resident, 0)
        setting.serve(resident, 1)
        thread = threading.Thread(target=flood)
        thread.start()
        try:
            for factor in range(500):
                weights[0] = factor
                resident.run(line, timeout=20)
                assert y[1] == factor
            resident.check()
        finally:
            stop.set()
            thread.join()
        assert resident.statistics()["lost"] == 0


def test_a_broken_entry_is_answered_and_said(setting: Setting) -> None:
    with Resident(setting.program, idle=0.2) as resident:
        line, _, _ = setting.serve(resident, 0)
        resident.directory.entries[0]["regions"][3] = 200
        with pytest.raises(KernelFailed, match="invalid entry"):
            resident.run(line)


def test_limits_are_errors_with_numbers(setting: Setting, opened: Device) -> None:
    with Resident(setting.program) as resident:
        for _ in range(256):
            resident.add(setting.line_place(0), setting.task(0))
        with pytest.raises(QuotaExceeded, match="256"):
            resident.add(setting.line_place(0), setting.task(0))
    with Resident(setting.program) as resident:
        others = [opened.import_region(MappedRegion.create(4096)) for _ in range(REGIONS)]
        for each in others[:-1]:
            resident.add(setting.line_place(0), Task(*[Place(each, 0, 64)] * 4, 1))
        with pytest.raises(QuotaExceeded, match=f"{REGIONS + 1} regions, expected at most {REGIONS}"):
            resident.add(setting.line_place(0), Task(*[Place(others[-1], 0, 64)] * 4, 1))
    for each in others:
        each.close()


@pytest.mark.parametrize(
    "arguments", [{"idle": 0}, {"idle": -1.0}, {"answer_within": 0}, {"backoff": -1}, {"idle": float("nan")}]
)
def test_times_out_of_range_are_refused(setting: Setting, arguments: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match="expected times above 0"):
        Resident(setting.program, **arguments)  # type: ignore[arg-type]


def test_lines_must_be_aligned_and_whole(setting: Setting) -> None:
    with Resident(setting.program) as resident:
        for place in (setting.place(0, 0, 64), Place(setting.imported, 8192 + 8, 128)):
            with pytest.raises(InvalidArgument, match="line: "):
                resident.add(place, setting.task(0))


def test_closed_is_said(setting: Setting) -> None:
    resident = Resident(setting.program)
    resident.close()
    resident.close()
    with pytest.raises(Closed):
        resident.wake()


def test_two_resident_kernels_and_a_launch_side_by_side(setting: Setting, opened: Device) -> None:
    identity = opened.build(task_source(opened, "identity"))
    with Resident(setting.program, idle=0.05) as one, Resident(identity, idle=0.05) as other:
        scaled, weights, y = setting.serve(one, 0)
        copied, _, z = setting.serve(other, 1)
        weights[0] = 3
        for _ in range(20):
            one.run(scaled)
            other.run(copied)
        assert y[2] == 6
        assert z[2] == 2 or z[2] == 0  # 16 bytes: 4 floats
        setting.program.prepare(setting.task(2)).run()


def test_opening_by_name() -> None:
    names = [found.name for found in device.devices()]
    assert names[0] == "cpu"
    assert all(found.what for found in device.devices())
    for name in ("gpu", "cpu:1", "cuda:x", ""):
        with pytest.raises(InvalidArgument, match="expected cpu, opencl"):
            device.open(name)
    with pytest.raises(NotFound, match="opencl"):
        device.open("opencl:nobody")
