"""Compiles an exported program to native code:
``python -m teal.kernel.torch_compile FILE OUT NAME THREADS HEADERS [SEALED…]``.

Theory of operation: torch's compiler (AOTInductor, and the C++ compiler behind it) takes many seconds and much memory,
so a worker has it run in a process of its own. That process reads the sealed file from one descriptor and writes a
shared library to another; what it needs of the file system goes with a folder that it leaves with, or that the next
one takes away; headers stay (torch_headers.py). Weights are not in the library: workers give it views of the mapped
file. It ends with its worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from teal.errors import KernelFailed, NotFound
from teal.host.passing_folder import PassingFolder
from teal.kernel import torch_headers
from teal.kernel.protocol import Snapshot, Source
from teal.kernel.sealed import mapped_privately, memory_file, one_line, seal, snapshot_key, usable
from teal.kernel.torch_program import Program

_PART = "library"
_REFUSED = b"CppCompileError"  # how torch calls it when the C++ compiler does not take its code
_PR_SET_PDEATHSIG = 1


class Library:
    """Native code of a program, with views of the file as its weights. ``run`` takes inputs and memory of outputs."""

    def __init__(self, fd: int, program: Program) -> None:
        """``fd``: its memory file, which stays open as long as this. Raises KernelFailed."""
        self._fd = fd
        try:
            runner = torch._C._aoti.AOTIModelContainerRunnerCpu(_path(fd), 1)
            names = runner.get_constant_names_to_original_fqns()
            weights = {f"w{i}": feed.weight for i, feed in enumerate(program.feeds) if feed.weight is not None}
            self._held = {name: weights[origin] for name, origin in names.items()}
            runner.update_constant_buffer(self._held, False, True, True)
        except (RuntimeError, LookupError) as error:
            raise KernelFailed(f"{program.shown}: its compiled form does not load: {one_line(error)}") from None
        self.run = runner.run

    def __del__(self) -> None:
        os.close(self._fd)


_loaded = 0


def _path(fd: int) -> str:
    """A path of a descriptor that no library was loaded from before: the loader takes one path for one library."""
    global _loaded
    _loaded += 1
    steps = "".join("./" if bit == "1" else "/" for bit in f"{_loaded:b}")
    return f"/proc/self/{steps}fd/{fd}"


_MOST_MADE = 16
_made: dict[str, int] = {}  # libraries of programs whose weights come beside them, by what they were made of


def library(
    source: Source, name: str, program: Program, engine: str, text: bytes
) -> tuple[Library, Snapshot | None, str]:
    """The native code of a program, what to keep of it, and a note: from its snapshot, or compiled.

    ``text``: the program's own. Raises NotFound without a C++ compiler, KernelFailed.
    """
    kept, note = usable(engine, source)
    if kept is not None and _PART in kept.parts:
        try:
            return Library(os.dup(kept.parts[_PART]), program), None, ""
        except KernelFailed as error:
            note = f"its snapshot did not load, compiled anew: {error}"
    assert source.fd is not None
    fd = _made_before(source, name, text) if source.sealed else seal(_compiled(source, name))
    made = Library(fd, program)
    snapshot = Snapshot(snapshot_key(engine, source), {_PART: os.dup(fd)}) if source.wants_snapshot else None
    return made, snapshot, note


def _made_before(source: Source, name: str, text: bytes) -> int:
    """A memory file with the library of one of torch.compile's programs.

    The same one comes again whenever its weights change, and nothing of them is in the library.
    """
    key = hashlib.sha256(text + f" {source.cores} {source.precision}".encode()).hexdigest()
    if key not in _made:
        while len(_made) >= _MOST_MADE:
            os.close(_made.pop(next(iter(_made))))
        _made[key] = seal(_compiled(source, name))
    return os.dup(_made[key])


def _compiled(source: Source, name: str) -> int:
    """A memory file with the library of a program. Raises NotFound without a C++ compiler, KernelFailed."""
    assert source.fd is not None
    if shutil.which(os.environ.get("CXX", "c++")) is None and shutil.which("g++") is None:
        raise NotFound(f"{source.shown}: compile needs a C++ compiler, and there is none: apt-get install g++")
    out = memory_file("compiled")
    try:
        ran = _run(source, name, out, source.headers)
        # A compiler that was killed may have left half of a header.
        if ran.returncode != 0 and source.headers and _REFUSED in ran.stderr:
            torch_headers.forget(source.headers)
            os.ftruncate(out, 0)
            os.lseek(out, 0, os.SEEK_SET)
            ran = _run(source, name, out, "")
        if ran.returncode != 0:
            said = ran.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {ran.returncode}"]
            raise KernelFailed(f"{source.shown}: torch does not compile it: {said[-1][:600]}")
    except BaseException:
        os.close(out)
        raise
    return out


def _run(source: Source, name: str, out: int, headers: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(source.cores), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    assert source.fd is not None
    arguments = (source.fd, out, name, source.cores, headers, *source.sealed)
    return subprocess.run(
        [sys.executable, "-m", "teal.kernel.torch_compile", *map(str, arguments)],
        pass_fds=(source.fd, *source.sealed, out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        check=False,
    )


def _library(fds: list[int], name: str, threads: int, folder: str, headers: str) -> str:
    """Path of the library."""
    kept = torch_headers.keep(headers)
    from torch._inductor import aot_compile

    from teal.kernel.pt2 import Archive
    from teal.kernel.torch_graph import flat
    from teal.kernel.torch_program import read

    torch.set_num_threads(threads)
    mapping, *sealed = map(mapped_privately, fds)
    module = flat(read(Archive(mapping, name, sealed), name), compiled=True).module
    inputs: list[Any] = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    with torch.no_grad():
        made = aot_compile(
            module,
            tuple(inputs),
            options={
                "aot_inductor.output_path": os.path.join(folder, "model.so"),
                "aot_inductor.package_constants_in_so": False,
                # Code that other weights will be given must hold nothing of the values of these.
                "always_keep_tensor_constants": bool(sealed),
                "joint_graph_constant_folding": not sealed,
                "aot_inductor.check_lowerbound": False,  # sizes of 0 and 1 are right too; ranges are checked before
                "aot_inductor.precompile_headers": kept,  # takes longer than it saves, for one program
                "cpp.threads": threads,
            },
        )
    if not isinstance(made, str):
        raise KernelFailed(f"the compiler made {made!r}, expected a library")
    if absent := _called_by_name(folder):
        raise KernelFailed(f"compiled code has no way to call {', '.join(absent)}")
    return made


def _called_by_name(folder: str) -> list[str]:
    """Operators that the code calls through torch's dispatcher, which a library on its own does not reach.

    The compiler writes a list of them beside the code. (Most of complex arithmetic is among them.)
    """
    lists = [json.loads(path.read_bytes()) for path in Path(folder).rglob("*.wrapper.json")]
    return sorted({node["node"]["target"].removeprefix("torch.ops.") for made in lists for node in made["nodes"]})


def main(argv: list[str]) -> int:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    fds, out, threads = [int(argv[1]), *map(int, argv[6:])], int(argv[2]), int(argv[4])
    passing = PassingFolder("teal-compile-")
    folder = str(passing.path)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    try:
        with (
            open(_library(fds, argv[3], threads, folder, argv[5]), "rb") as made,
            open(out, "wb", closefd=False) as target,
        ):
            shutil.copyfileobj(made, target)
    except Exception as error:
        print(" ".join(f"{type(error).__name__}: {error}".split())[:2000], file=sys.stderr)
        return 1
    finally:
        passing.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
