"""`teal duck cc`: compiles programs that a duck can run.

Theory of operation: there is one right set of flags for each kind of program (``ABIS``), and it is written down here:
static, at a fixed address, pages of 4096 bytes, never a page that can be written and executed, no build id, and for
programs without a libc nothing that would need one. Programs in C and C++ go to the C compiler ($CC, $CXX), in Rust to
rustc ($RUSTC), in Zig to zig ($ZIG); the start-up code is C and is compiled with each program, and the C compiler
links. What comes out is read as a duck would read it, so that a program that cannot be opened is refused here.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from teal import _core
from teal.errors import InvalidArgument, NotFound

ABIS = {
    "teal": "resident: duck_call() of duck.h, called many times",
    "duckinfo": "DuckInfo 0.04, x86-64: duck_main() of duckinfo.h, judged",
    "duckinfo32": "the same for i386",
    "linux": "an ordinary static program with main(), judged",
}
LEVELS = ("0", "1", "2", "3", "s", "g", "fast")
_LANGUAGES = {".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++", ".rs": "rust", ".zig": "zig"}
_BRING = {
    "C": ("CC", ("cc", "gcc", "clang"), "apt-get install gcc"),
    "C++": ("CXX", ("c++", "g++", "clang++"), "apt-get install g++"),
    "Rust": ("RUSTC", ("rustc", os.path.expanduser("~/.cargo/bin/rustc")), "apt-get install rustc"),
    "Zig": ("ZIG", ("zig",), "pip install ziglang, and ZIG='python -m ziglang'"),
}
# Every duck runs Teal, and this is what Teal itself needs. More is chosen at run time (examples/duck/gemv.c).
_BASELINE = "x86-64-v2"


@dataclass(frozen=True)
class Compiled:
    """A program that was compiled: where it lies, and what a duck sees in it."""

    path: str
    abi: str
    language: str
    nbytes: int
    sha256: str
    machine: str
    resident: bool
    commands: tuple[str, ...]


def folder() -> Path:
    """The folder with ``include/`` (duck.h, duckinfo.h, duck.rs) and ``start/``. Raises NotFound."""
    found = Path(_core.__file__).parent / "duck"
    if not (found / "include" / "duck.h").exists():
        raise NotFound(f"{found}: duck.h is not there; install Teal again")
    return found


def _compiler(language: str) -> list[str]:
    variable, names, bring = _BRING[language]
    if named := os.environ.get(variable):
        command = shlex.split(named)
        if not command or shutil.which(command[0]) is None:
            raise NotFound(f"${variable} is {named!r}, and no such compiler is here")
        return command
    found = next((path for name in names if (path := shutil.which(name)) is not None), None)
    if found is None:
        raise NotFound(f"no {language} compiler is installed: {bring}")
    return [found]


class _Build:
    """The commands of one program; what they make lies in a folder of its own."""

    def __init__(self, sources: Sequence[Path], abi: str, level: str, libc: bool, flags: Sequence[str], work: Path):
        self.sources, self.abi, self.level, self.libc, self.flags, self.work = sources, abi, level, libc, flags, work
        self.language = _LANGUAGES[sources[0].suffix]
        self.freestanding = abi != "linux" and not libc
        self.include = folder() / "include"
        self.start = folder() / "start"
        self.cc = _compiler("C")
        self.commands: list[str] = []

    def run(self, command: Sequence[str | Path]) -> str:
        words = [str(word) for word in command]
        self.commands.append(shlex.join(words))
        said = subprocess.run(words, capture_output=True, text=True, check=False)
        if said.returncode != 0:
            what = ", ".join(map(str, self.sources))
            raise InvalidArgument(f"{what} does not compile: {(said.stderr or said.stdout).strip()[-4000:]}")
        return said.stdout

    def at(self, name: str) -> str:
        return str(self.work / name)

    def machine(self) -> str:
        """Of the compiler's target: x86_64, i386 or aarch64."""
        if self.abi == "duckinfo32":
            return "i386"
        return self.run([*self.cc, "-dumpmachine"]).split("-")[0].replace("arm64", "aarch64")

    def target_flags(self, machine: str) -> list[str]:
        flags = ["-m32", "-march=i686", "-msse2"] if machine == "i386" else []
        return flags or ([f"-march={_BASELINE}"] if machine == "x86_64" else [])

    def c_flags(self) -> list[str]:
        flags = [f"-O{self.level}", f"-I{self.include}", "-fno-pic", *self.target]
        if self.freestanding:
            flags += ["-ffreestanding", "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-math-errno"]
            flags += ["-ffunction-sections", "-fdata-sections"]
            if self.language == "c++":
                flags += ["-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"]
        return flags

    def start_object(self) -> list[str]:
        if self.abi == "linux":
            return []
        source = "start.c" if self.abi == "teal" else "start_duckinfo.c"
        flags = ["-std=gnu11", "-O2", f"-I{self.include}", "-fno-pic", "-ffunction-sections", *self.target]
        if self.libc:
            flags.append("-DDUCK_LIBC")
        else:
            flags += ["-ffreestanding", "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-builtin"]
        if self.language == "rust":
            flags.append("-DDUCK_RUST")
        self.run([*self.cc, *flags, "-c", self.start / source, "-o", self.at("start.o")])
        return [self.at("start.o")]

    def c_objects(self) -> list[str]:
        objects = []
        for i, source in enumerate(self.sources):
            compiler = _compiler("C++") if _LANGUAGES[source.suffix] == "c++" else self.cc
            self.run([*compiler, *self.c_flags(), *self.flags, "-c", source.resolve(), "-o", self.at(f"{i}.o")])
            objects.append(self.at(f"{i}.o"))
        return objects

    def rust_objects(self) -> list[str]:
        rustc = _compiler("Rust")
        level = {"fast": "3", "g": "1", "0": "0"}.get(self.level, self.level)
        codegen = ["panic=abort", f"opt-level={level}", "relocation-model=static"]
        flags: list[str | Path] = ["--edition", "2021", *(word for option in codegen for word in ("-C", option))]
        if self.target_machine == "x86_64":
            flags += ["-C", f"target-cpu={_BASELINE}"]
        if self.abi == "linux":
            linking = ["-C", "target-feature=+crt-static", "-C", "link-arg=-Wl,-z,max-page-size=4096"]
            self.run([*rustc, *flags, *linking, *self.flags, self.sources[0].resolve(), "-o", self.at("program")])
            return []
        if self.abi != "teal":
            raise InvalidArgument("programs in Rust have the ABI teal or linux: duckinfo.h is for C and C++")
        crate: list[str | Path] = ["--crate-type", "rlib", "--crate-name", "duck", self.include / "duck.rs"]
        self.run([*rustc, *flags, *crate, "-o", self.at("libduck.rlib")])
        library = ["--crate-type", "staticlib", "--extern", f"duck={self.at('libduck.rlib')}"]
        self.run([*rustc, *flags, *library, *self.flags, self.sources[0].resolve(), "-o", self.at("libprogram.a")])
        return [self.at("libprogram.a")]

    def zig_objects(self) -> list[str]:
        if self.abi != "teal":
            raise InvalidArgument("programs in Zig have the ABI teal: build others with zig itself, static")
        mode = {"0": "Debug", "g": "Debug", "s": "ReleaseSmall"}.get(self.level, "ReleaseFast")
        cpu = ["-mcpu=x86_64_v2"] if self.target_machine == "x86_64" else []
        flags = ["-O", mode, f"-I{self.include}", "-fno-stack-check", "-fno-PIC", *cpu]
        target = ["-target", f"{self.target_machine}-linux-none"]
        zig = [*_compiler("Zig"), "build-obj", *target, *flags, *self.flags]
        self.run([*zig, f"-femit-bin={self.at('program.o')}", self.sources[0].resolve()])
        return [self.at("program.o")]

    def runtime(self) -> list[str]:
        """libgcc, for what the CPU has no instruction for. Of i386 there is often none: called.h has the most of it."""
        own = self.run([*self.cc, *self.target, "-print-libgcc-file-name"]).strip()
        if self.target_machine == "i386" and own == self.run([*self.cc, "-print-libgcc-file-name"]).strip():
            return []
        return [own] if os.path.isfile(own) else []

    def link(self, objects: Sequence[str]) -> None:
        driver = _compiler("C++") if self.language == "c++" else self.cc
        flags = ["-static", "-no-pie", *self.target, "-Wl,-z,max-page-size=4096", "-Wl,--build-id=none"]
        if "-g" not in self.flags:
            flags.append("-Wl,--strip-debug")
        tail = [flag for flag in self.flags if flag.startswith(("-l", "-L", "-Wl,", "-nostd", "-nostart"))]
        if self.freestanding:
            flags += ["-nostdlib", "-Wl,--gc-sections", "-Wl,-z,noexecstack"]
            tail += self.runtime()
        self.run([*driver, *flags, *objects, *tail, "-o", self.at("program")])

    def make(self) -> Path:
        self.target_machine = self.machine()
        self.target = self.target_flags(self.target_machine)
        start = self.start_object()
        objects = {"rust": self.rust_objects, "zig": self.zig_objects}.get(self.language, self.c_objects)()
        if objects:
            self.link([*start, *objects])
        return self.work / "program"


def _checked(sources: Sequence[str | os.PathLike[str]], abi: str, level: str, libc: bool) -> list[Path]:
    paths = [Path(source) for source in sources]
    if not paths:
        raise InvalidArgument("no source was given")
    if abi not in ABIS:
        raise InvalidArgument(f"abi {abi!r}: expected one of {', '.join(ABIS)}")
    if level not in LEVELS:
        raise InvalidArgument(f"optimisation {level!r}: expected one of {', '.join(LEVELS)}")
    for path in paths:
        if path.suffix not in _LANGUAGES:
            raise InvalidArgument(f"{path}: expected a file that ends in {', '.join(_LANGUAGES)}")
        if not path.is_file():
            raise NotFound(f"{path}: no such file")
    languages = {_LANGUAGES[path.suffix] for path in paths}
    if len(paths) > 1 and not languages <= {"c", "c++"}:
        raise InvalidArgument("several sources are for C and C++: a program in Rust or Zig has one root file")
    if libc and (abi != "teal" or not languages <= {"c", "c++"}):
        raise InvalidArgument("libc is for resident programs in C and C++: linux programs have one, others cannot")
    # The first one says how it is linked.
    return sorted(paths, key=lambda path: _LANGUAGES[path.suffix] != "c++")


def compile_program(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    abi: str = "teal",
    level: str = "2",
    libc: bool = False,
    flags: Sequence[str] = (),
) -> Compiled:
    """Compiles C, C++, Rust or Zig to a program that a duck runs, in the file ``target``.

    ``abi`` is one of ``ABIS``, ``level`` one of ``LEVELS`` (-O), ``libc`` links a resident program with a libc,
    ``flags`` go to the compiler of the sources as they are (-l, -L, -Wl and -nostdlib to the linker too). Raises
    NotFound when there is no compiler or no source, InvalidArgument with what the compiler said, and when a duck would
    not take what came out.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    paths = _checked(given, abi, level, libc)
    with tempfile.TemporaryDirectory(prefix="teal-cc-") as work:
        build = _Build(paths, abi, level, libc, flags, Path(work))
        made = build.make()
        contents = made.read_bytes()
        facts = _facts(contents, os.fspath(target), abi)
        _put(made, Path(target))
    return Compiled(
        path=os.fspath(target),
        abi=abi,
        language=build.language,
        nbytes=len(contents),
        sha256=facts["sha256"].hex(),
        machine=facts["machine"],
        resident=facts["resident"],
        commands=tuple(build.commands),
    )


def _facts(contents: bytes, name: str, abi: str) -> dict[str, Any]:
    return _core.read_elf(contents, name, duckinfo=abi.startswith("duckinfo"), any_machine=True).facts


def _put(made: Path, target: Path) -> None:
    # Whole or not at all: the old file stays until the new one is complete, also for who is reading it.
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copy(made, beside)
        os.replace(beside, target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidArgument(f"{target}: cannot be written: {error.strerror}") from error
