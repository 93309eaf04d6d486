"""libbpf, through ctypes: the few functions that loading programs takes.

Theory of operation: libbpf does what is hard about BPF objects (relocations, types, maps); this file only declares what
is called. It is opened when it is first needed. libbpf's own messages are kept until somebody asks why a load failed,
instead of going to stderr.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from typing import Any

_NAMES = ("libbpf.so.1",)  # libbpf 1.0 and later; 0.x has another interface
_LONGEST = 256 * 1024  # characters of messages that are kept: a verifier log is long

_messages: list[str] = []
_Print = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class TestRun(ctypes.Structure):
    """struct bpf_test_run_opts"""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_void_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


_P, _S, _I, _U = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bpf_object__open_file": (_P, (_S, _P)),
    "bpf_object__load": (_I, (_P,)),
    "bpf_object__close": (None, (_P,)),
    "bpf_object__find_map_by_name": (_P, (_P, _S)),
    "bpf_object__next_map": (_P, (_P, _P)),
    "bpf_object__next_program": (_P, (_P, _P)),
    "bpf_map__reuse_fd": (_I, (_P, _I)),
    "bpf_map__initial_value": (_P, (_P, ctypes.POINTER(ctypes.c_size_t))),
    "bpf_map__name": (_S, (_P,)),
    "bpf_map__fd": (_I, (_P,)),
    "bpf_map__key_size": (_U, (_P,)),
    "bpf_map__value_size": (_U, (_P,)),
    "bpf_map__max_entries": (_U, (_P,)),
    "bpf_map_lookup_elem": (_I, (_I, _P, _P)),
    "bpf_map_update_elem": (_I, (_I, _P, _P, ctypes.c_uint64)),
    "bpf_program__name": (_S, (_P,)),
    "bpf_program__section_name": (_S, (_P,)),
    "bpf_program__fd": (_I, (_P,)),
    "bpf_program__attach": (_P, (_P,)),
    "bpf_link__destroy": (_I, (_P,)),
    "bpf_prog_test_run_opts": (_I, (_I, ctypes.POINTER(TestRun))),
}


def _keep(level: int, text: bytes | None, arguments: int | None) -> int:
    """libbpf's print function: ``text`` is a format, and its arguments a va_list that only vsnprintf can read."""
    if text is None or level > 1:  # 0 warning, 1 information, 2 debug
        return 0
    buffer = ctypes.create_string_buffer(_LONGEST)
    ctypes.CDLL(None).vsnprintf(buffer, ctypes.c_size_t(_LONGEST), text, ctypes.c_void_p(arguments))
    _messages.append(buffer.value.decode(errors="replace"))
    del _messages[:-64]
    return 0


_kept = _Print(_keep)


@functools.cache
def library() -> ctypes.CDLL | None:
    """libbpf, or None when it is not installed."""
    for name in _NAMES:
        try:
            found = ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
        for function, (result, arguments) in _FUNCTIONS.items():
            declared = getattr(found, function)
            declared.restype = result
            declared.argtypes = arguments
        found.libbpf_set_print.restype = ctypes.c_void_p
        found.libbpf_set_print(_kept)
        return found
    return None


def take_messages() -> str:
    """What libbpf said since the last time."""
    said = "".join(_messages)
    _messages.clear()
    return said
