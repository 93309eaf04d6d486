"""Finding OpenCL drivers from Python, so that nobody has to set variables.

Theory of operation. An OpenCL program talks to a loader, which reads a directory of `.icd` files, each naming a
driver's library. Drivers that come as Python packages are not in the system's directory, and one of them (Intel's CPU
runtime) names a path in its `.icd` that does not exist and needs libraries beside it that no search path covers. So
before pyopencl is first imported, a private directory is written that names everything found, the libraries are
loaded by their paths, and OCL_ICD_VENDORS is set for this process. It is done once; a value that the user has set is
left alone, and said.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from teal.host.passing_folder import PassingFolder

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
# Loaded in this order: each needs only those before it and the C library's.
INTEL_NEEDS = (
    "libirc.so",
    "libintlc.so.5",
    "libimf.so",
    "libsvml.so",
    "libirng.so",
    "libhwloc.so.15",
    "libtbb.so.12",
    "libtbbmalloc.so.2",
)


@dataclass(frozen=True)
class Runtime:
    """A driver's library, and who brought it."""

    library: str
    origin: str


def system_runtimes(vendors: Path = SYSTEM_VENDORS) -> list[Runtime]:
    found = []
    for file in sorted(vendors.glob("*.icd")):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").split()
        except OSError:
            continue
        found += [Runtime(line, str(file)) for line in lines[:1]]
    return found


def files_of(package: str, name: str) -> list[Path]:
    """Files of an installed distribution whose name starts so; none when it is not installed."""
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        return []
    found = (Path(str(file.locate())).absolute() for file in files if file.name.startswith(name))
    return sorted(
        path for path in found if ".so" in path.suffixes and path.suffix not in {".py", ".pyc"} and path.exists()
    )


def packaged_runtimes() -> list[Runtime]:
    """Intel's CPU runtime and PoCL where they are installed as Python packages."""
    found = [
        Runtime(str(file), "intel-opencl-rt") for file in files_of("intel-opencl-rt", "libintelocl.so") if file.exists()
    ][:1]
    for file in files_of("pocl-binary-distribution", "libpocl"):
        if file.exists() and ".so" in file.name:
            found.append(Runtime(str(file), "pocl-binary-distribution"))
    return found


def load_intel_needs(library: Path) -> None:
    for name in INTEL_NEEDS:
        for folder in (library.parent, Path(sys.prefix) / "lib"):
            if (folder / name).exists():
                ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
                break


_done: list[Runtime] | None = None
_folder: str | None = None


def prepare() -> list[Runtime]:
    """Makes every driver known to the loader; to be called before pyopencl is imported. Returns what it made known."""
    global _done, _folder
    if _done is not None:
        return _done
    if os.environ.get("OCL_ICD_VENDORS"):
        _done = [Runtime(os.environ["OCL_ICD_VENDORS"], "OCL_ICD_VENDORS, set by you")]
        return _done
    system, packaged = system_runtimes(), packaged_runtimes()
    # The system's PoCL knows newer processors than the packaged one; two in one process would share symbols.
    if any("pocl" in each.library for each in system):
        packaged = [each for each in packaged if "pocl" not in each.library]
    for each in packaged:
        if each.origin == "intel-opencl-rt":
            load_intel_needs(Path(each.library))
    made = PassingFolder("teal-opencl-")
    atexit.register(made.close)
    folder = made.path
    _done = system + packaged
    for number, each in enumerate(_done):
        (folder / f"{number:02}.icd").write_text(each.library + "\n", encoding="utf-8")
    os.environ["OCL_ICD_VENDORS"] = _folder = f"{folder}/"
    return _done


def after_import() -> None:
    """Keeps pyopencl's loader from adding the packaged PoCL by itself: two PoCLs in one process are one too many."""
    if _folder is not None:
        os.environ["PYOPENCL_HOME"] = _folder
