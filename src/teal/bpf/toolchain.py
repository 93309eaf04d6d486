"""What BPF programs need of this machine: a compiler, libbpf, and a kernel that permits bpf(2).

Theory of operation: everything is looked for when it is needed and named when it is missing, with the command that
brings it. Programs are compiled for the machine they run on (``-target bpf -mcpu=v3``), against the system's kernel
headers and Teal's own ``teal_bpf.h``; ``vmlinux.h`` can be made from the running kernel's type information.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from teal import _core
from teal.errors import InvalidArgument, NotFound, TealError

INCLUDE = str(Path(__file__).parent / "include")
"""The folder of teal_bpf.h."""

_CLANGS = ("clang", *(f"clang-{version}" for version in range(30, 13, -1)))
_TYPES = "/sys/kernel/btf/vmlinux"
BRING = "apt-get install clang libbpf-dev bpftool"


@functools.cache
def clang() -> str | None:
    """The compiler: $TEAL_CLANG, or the newest that is installed."""
    if (named := os.environ.get("TEAL_CLANG")) is not None:
        return shutil.which(named)
    return next((path for name in _CLANGS if (path := shutil.which(name)) is not None and _can_bpf(path)), None)


def _can_bpf(path: str) -> bool:
    said = subprocess.run([path, "--print-targets"], capture_output=True, text=True, check=False)
    return "bpf" in said.stdout


def _no_permission() -> str | None:
    try:
        os.close(_core.bpf_create_memory(4096))
    except TealError as error:
        return str(error)
    return None


def why_not(*, compiler: bool = True) -> str | None:
    """Why BPF programs cannot be used here, in one line that says what to do; None when they can."""
    from teal.bpf.libbpf import library

    if (said := _no_permission()) is not None:
        return f"BPF is not permitted here: {said}"
    if not os.path.exists(_TYPES):
        return f"BPF needs a kernel with type information, and there is no {_TYPES} (CONFIG_DEBUG_INFO_BTF)"
    if library() is None:
        return f"libbpf is not installed: {BRING}"
    if compiler and clang() is None:
        return f"no clang with a BPF target is installed: {BRING}"
    return None


def compile_program(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, flags: Sequence[str] = ()
) -> Path:
    """Compiles a BPF program in C to the object file ``target``.

    Raises NotFound when there is no compiler, InvalidArgument with what the compiler said.
    """
    compiler = clang()
    if compiler is None:
        raise NotFound(f"no clang with a BPF target is installed: {BRING}")
    # Where Debian keeps asm/types.h, which clang does not look into for this target.
    system = f"/usr/include/{sysconfig.get_config_var('MULTIARCH') or 'x86_64-linux-gnu'}"
    command = [
        compiler,
        "-target",
        "bpf",
        "-mcpu=v3",
        "-O2",
        "-g",
        "-Wall",
        "-Werror",
        f"-I{INCLUDE}",
        f"-isystem{system}",
    ]
    command += [*flags, "-c", os.fspath(source), "-o", os.fspath(target)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise InvalidArgument(f"{os.fspath(source)} does not compile: {said.stderr.strip()[:4000]}")
    return Path(target)
