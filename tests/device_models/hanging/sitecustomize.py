"""For hosts whose device kernels are to hang: mllb with 1e30 as its first feature never ends."""

from __future__ import annotations

import os

if os.environ.get("TEAL_TEST_HANG"):
    import dataclasses

    from teal.kernel import device, device_call
    from teal.kernel.systems import task

    _whole = task.task_of
    _HANG = "if (worker == 0 && *(TEAL_GLOBAL const float*)in == 1e30f) for (;;) TEAL_RELAX(4);"

    def task_of(load: str) -> task.Task:
        found = _whole(load)
        at = found.source.index("{", found.source.index("teal_task(")) + 1
        return dataclasses.replace(found, source=found.source[:at] + _HANG + found.source[at:])

    device.task_of = task_of
    device.ANSWER_WITHIN = 1.0
    device_call._SERVED_WITHIN = 1.0
