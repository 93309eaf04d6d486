"""What `teal doctor` says about devices."""

from __future__ import annotations

from typing import Any

import pytest

from teal.device import doctor

GOOD = {"name": "opencl:x", "what": "X 1", "available": True, "capabilities": {"live": True, "note": ""}}
DEAF = {"name": "opencl:y", "what": "Y 2", "available": True, "capabilities": {"live": False, "note": "it is deaf"}}
ODD = {"name": "opencl:z", "what": "Z 3", "available": True, "error": "it does not compile"}
ABSENT = {"name": "opencl", "what": "pyopencl does not load", "available": False}


@pytest.mark.parametrize(
    ("devices", "state", "said"),
    [
        ([GOOD], "good", "opencl:x: X 1: resident kernels and launches"),
        ([GOOD, ODD], "usable", "it does not compile"),
        ([DEAF], "broken", "launches only (it is deaf)"),
        ([ODD], "broken", "it does not compile"),
        ([ABSENT], "none", "pyopencl does not load"),
    ],
)
def test_verdicts(devices: list[dict[str, Any]], state: str, said: str) -> None:
    verdict = doctor.examine("opencl", lambda kind: devices)
    assert verdict.state == state
    assert said in verdict.found


def test_a_driver_that_kills_its_process_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "_SCRIPT", "import os, sys; print('last words', file=sys.stderr, flush=True); os.abort()"
    )
    with pytest.raises(RuntimeError, match=r"took its process down \(status -6\): last words"):
        doctor.ask("opencl")


def test_a_driver_that_hangs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SCRIPT", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "SECONDS", 0.2)
    with pytest.raises(RuntimeError, match="did not answer within"):
        doctor.ask("opencl")


def test_what_is_not_installed_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.MODULES, "cuda", "nobody.has.this")
    verdict = doctor.examine("cuda")
    assert verdict.state == "none"
    assert "teal-runtime[cuda]" in verdict.found
