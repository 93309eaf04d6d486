"""What `teal doctor` says about compute devices: which open, and whether resident kernels work on them.

Each driver is tried in a process of its own, as one that crashes or hangs must not take the doctor with it. `cpu` is
not asked: it needs nothing.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

SECONDS = 60.0
MODULES = {"opencl": "pyopencl", "cuda": "cuda.bindings"}

# Run in the child: opens every device of one kind and says what was found out about it.
_SCRIPT = """
import dataclasses, json, sys, warnings
warnings.simplefilter("ignore")
from teal import device
from teal.errors import TealError
found = []
for each in device.devices(sys.argv[1]):
    report = {"name": each.name, "what": each.what, "available": each.available}
    if each.available:
        try:
            with device.open(each.name) as opened:
                report["capabilities"] = dataclasses.asdict(opened.capabilities)
        except TealError as error:
            report["error"] = str(error).splitlines()[0]
    found.append(report)
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """none: nothing is installed, or there is no such device; good: everything works; usable: something does;
    broken."""

    state: Literal["none", "good", "usable", "broken"]
    found: str


def installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even its parent
        return False


def ask(kind: str) -> list[Mapping[str, Any]]:
    """The devices of a kind, tried in another process. Raises RuntimeError with how that ended when it failed."""
    command = [sys.executable, "-c", _SCRIPT, kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"a driver did not answer within {SECONDS:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(f"a driver took its process down (status {done.returncode}): {last[:200]}")
    return list(json.loads(done.stdout.splitlines()[-1]))


once = functools.cache(ask)  # drivers do not come and go while a process lives


def examine(kind: str, tried: Callable[[str], list[Mapping[str, Any]]] = once) -> Verdict:
    """What is to be said about the devices of a kind ("opencl", "cuda")."""
    if tried is once and not installed(MODULES[kind]):
        return Verdict("none", f"none: {MODULES[kind]} is not installed; pip install 'teal-runtime[{kind}]' brings it")
    try:
        devices = tried(kind)
    except RuntimeError as error:
        return Verdict("broken", str(error))
    words, broken, resident = [], False, False
    for each in devices:
        if not each["available"]:
            return Verdict("none", f"none: {each['what']}")  # which is no fault of the machine
        if "error" in each:
            broken = True
            words.append(f"{each['name']}: {each['error']}")
            continue
        can = each["capabilities"]
        resident = resident or bool(can["live"])
        kept = "resident kernels and launches" if can["live"] else f"launches only ({can['note']})"
        words.append(f"{each['name']}: {each['what']}: {kept}")
    state: Literal["good", "usable", "broken"]
    state = "good" if resident and not broken else "usable" if resident else "broken"
    return Verdict(state, "; ".join(words))
