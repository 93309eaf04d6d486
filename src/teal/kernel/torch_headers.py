"""What torch's compiler needs for every program, kept from one to the next: precompiled headers, and what it tried out.

Theory of operation: most of what a C++ compiler does for a small graph is to read torch's headers. torch can have them
read once, and keeps what came of it (300 MB) in a folder that it names after the user, where others could have put
something before. So it is given a folder in the host's cache that is this user's alone (private_folder.py), by what it
takes for the folder of temporary files while it works out the name. What is kept there is believed by the C++ compiler
only if it fits; should a program not compile with it, all of it goes, and the program is compiled once more without.

torch also finds out which vector instructions the C++ compiler and the machine have, by compiling and loading a small
library for each set of them: ten on a processor with AMX, and half of all the time. These libraries are kept beside
the headers, for each compiler and version of torch; loading them is tried each time. Half a library would be taken for
instructions that are not there, so what was not tried to the end is tried anew, by one process at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from teal.host.private_folder import Unsafe, open_private

_MOST_BYTES = 1 << 30  # a few versions of torch, or settings; then it begins anew


def keep(folder: str) -> bool:
    """Has torch keep its headers there, in this process: before anything of ``torch._inductor`` is imported.

    False: they are not to be used, because the folder is not ours alone or this torch keeps them elsewhere.
    """
    if not folder:
        return False
    path = Path(folder)
    try:
        os.close(open_private(path))
        if sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) > _MOST_BYTES:
            forget(folder)
            os.close(open_private(path))
    except (Unsafe, OSError):
        return False
    before, tempfile.tempdir = tempfile.tempdir, str(path.resolve())
    try:
        from torch._inductor import codecache
    finally:
        tempfile.tempdir = before
    _try_instructions(path / "instructions")
    return Path(getattr(codecache, "_HEADER_DIR", "/")).is_relative_to(path.resolve())


def _try_instructions(folder: Path) -> None:
    """torch remembers what came of it for as long as this process lives."""
    from torch._inductor import cpu_vec_isa

    made_by = getattr(cpu_vec_isa, "_get_isa_dry_compile_fingerprint", None)  # this torch's name for it
    if made_by is None or os.statvfs(folder.parent).f_flag & os.ST_NOEXEC:
        return  # it is left to torch, whose own folder may be where libraries load
    folder.mkdir(exist_ok=True)
    kept = folder / hashlib.sha256(made_by("").encode()).hexdigest()[:16]
    complete = kept / "complete"
    if complete.exists():
        _try_in(kept)
        return
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(kept, ignore_errors=True)
        _try_in(kept)
        complete.touch()


def _try_in(folder: Path) -> None:
    from torch._inductor import cpu_vec_isa

    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    try:
        cpu_vec_isa.valid_vec_isa_list()
    finally:
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR")
        if before is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


def forget(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
