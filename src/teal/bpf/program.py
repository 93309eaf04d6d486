"""BPF programs of one object file, loaded for a session and attached.

Theory of operation: an object that includes ``teal_bpf.h`` has three things of Teal's in it: the maps ``teal_memory``
and ``teal_bell``, in whose place the session's are put, and the numbers in ``.rodata.teal``, which are written before
the kernel verifies the program and fixed then. The kernel keeps programs and maps as long as this object, this process,
or an attachment that somebody pinned lives; nothing is pinned here, so nothing stays behind a process that is killed.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from teal.bpf.libbpf import TestRun, library, take_messages
from teal.bpf.session import Session
from teal.bpf.toolchain import BRING, compile_program
from teal.errors import Closed, InvalidArgument, NotFound

_LAYOUT = b".rodata.teal"


class Programs:
    """The programs in ``source`` (C, compiled now, or an object file), loaded for ``session``.

    ``with teal.bpf.Programs("watch.bpf.c", session) as programs: programs.attach()``
    flags: for the compiler. Raises NotFound (no libbpf, no compiler, no such file), InvalidArgument with what compiler,
    libbpf or the kernel's verifier said.
    """

    def __init__(self, source: str | os.PathLike[str], session: Session, *, flags: Sequence[str] = ()) -> None:
        found = library()
        if found is None:
            raise NotFound(f"libbpf is not installed: {BRING}")
        self._libbpf: Any = found
        self._links: dict[str, int] = {}
        self._object: int | None = None
        path = Path(source)
        if not path.exists():
            raise NotFound(f"{path}: no such BPF program")
        if path.suffix != ".c":
            self._load(path, session)
            return
        with tempfile.TemporaryDirectory(prefix="teal-bpf-") as folder:
            self._load(compile_program(path, Path(folder) / f"{path.name.split('.')[0]}.o", flags=flags), session)

    def _load(self, path: Path, session: Session) -> None:
        session._check_open()
        take_messages()
        self._object = self._libbpf.bpf_object__open_file(os.fsencode(path), None)
        if not self._object:
            raise InvalidArgument(f"{path.name} is not a BPF object: {take_messages().strip()[-2000:]}")
        try:
            self._put_in(session)
            if self._libbpf.bpf_object__load(self._object) != 0:
                raise InvalidArgument(f"the kernel does not take {path.name}: {take_messages().strip()[-4000:]}")
        except BaseException:
            self.close()
            raise

    def _put_in(self, session: Session) -> None:
        for name, fd in (("teal_memory", session.memory_fd), ("teal_bell", session.bell_fd)):
            found = self._libbpf.bpf_object__find_map_by_name(self._object, name.encode())
            if not found or self._libbpf.bpf_map__reuse_fd(found, fd) != 0:
                raise InvalidArgument(f"the program has no map {name!r}: it must include teal_bpf.h")
        size = ctypes.c_size_t()
        rodata = self._libbpf.bpf_object__find_map_by_name(self._object, _LAYOUT)
        place = self._libbpf.bpf_map__initial_value(rodata, ctypes.byref(size)) if rodata else None
        if not place or size.value != len(session.layout):
            raise InvalidArgument("the program was compiled with the teal_bpf.h of another Teal")
        ctypes.memmove(place, session.layout, len(session.layout))

    # ---- running ---------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of the programs, in the object's order."""
        return [name for name, _ in self._programs()]

    def _programs(self) -> Iterator[tuple[str, int]]:
        program = self._libbpf.bpf_object__next_program(self._handle(), None)
        while program:
            yield self._libbpf.bpf_program__name(program).decode(), program
            program = self._libbpf.bpf_object__next_program(self._handle(), program)

    def _program(self, name: str) -> int:
        programs = dict(self._programs())
        if name not in programs:
            raise NotFound(f"BPF program {name!r}; there are {sorted(programs)}")
        return programs[name]

    def _with_events(self) -> list[str]:
        section = self._libbpf.bpf_program__section_name
        return [name for name, program in self._programs() if not section(program).startswith(b"syscall")]

    def attach(self, *names: str) -> None:
        """Attaches these programs (default: all that are not of type "syscall") to the events their sections name."""
        for name in names or self._with_events():
            take_messages()
            link = self._libbpf.bpf_program__attach(self._program(name))
            if not link:
                raise InvalidArgument(f"BPF program {name!r} cannot be attached: {take_messages().strip()[-2000:]}")
            self._links[name] = link

    def detach(self) -> None:
        """Takes all programs off their events. The kernel lets those that run now finish."""
        for link in self._links.values():
            self._libbpf.bpf_link__destroy(link)
        self._links.clear()

    def run(self, name: str, context: bytes = b"") -> int:
        """Runs a program of type "syscall" now, on this CPU (BPF_PROG_TEST_RUN): what it returned."""
        options = TestRun(sz=ctypes.sizeof(TestRun))
        buffer = ctypes.create_string_buffer(context, len(context)) if context else None
        if buffer is not None:
            options.ctx_in = ctypes.cast(buffer, ctypes.c_void_p).value
            options.ctx_size_in = len(context)
        fd = self._libbpf.bpf_program__fd(self._program(name))
        error = self._libbpf.bpf_prog_test_run_opts(fd, ctypes.byref(options))
        if error != 0:
            raise InvalidArgument(f"BPF program {name!r} does not run: {os.strerror(-error)}")
        return int(options.retval)

    # ---- maps ------------------------------------------------------------------------------------------------------

    def _map(self, name: str) -> int:
        found = self._libbpf.bpf_object__find_map_by_name(self._handle(), name.encode())
        if not found:
            raise NotFound(f"BPF map {name!r} of these programs")
        return int(found)

    def read(self, name: str, key: int = 0) -> bytes:
        """The value at ``key`` of an array map of the programs: where they leave what they found."""
        found = self._map(name)
        value = ctypes.create_string_buffer(self._libbpf.bpf_map__value_size(found))
        fd = self._libbpf.bpf_map__fd(found)
        if self._libbpf.bpf_map_lookup_elem(fd, ctypes.byref(ctypes.c_uint32(key)), value) != 0:
            raise NotFound(f"key {key} of BPF map {name!r}")
        return value.raw

    def write(self, name: str, value: bytes, key: int = 0) -> None:
        """Sets the value at ``key`` of an array map. Raises InvalidArgument when the size does not suit."""
        found = self._map(name)
        size = self._libbpf.bpf_map__value_size(found)
        if len(value) != size:
            raise InvalidArgument(f"{len(value)} bytes for BPF map {name!r}, expected {size}")
        fd = self._libbpf.bpf_map__fd(found)
        if self._libbpf.bpf_map_update_elem(fd, ctypes.byref(ctypes.c_uint32(key)), value, 0) != 0:
            raise NotFound(f"key {key} of BPF map {name!r}")

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _handle(self) -> int:
        if not self._object:
            raise Closed("these BPF programs are closed")
        return self._object

    def close(self) -> None:
        """Detaches and unloads. Requests under way end on their own; their slots stay out until the session ends."""
        self.detach()
        if self._object:
            self._libbpf.bpf_object__close(self._object)
        self._object = None

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
