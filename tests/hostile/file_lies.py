"""Descriptors that are not what they are said to be: a hostile client passes them as model files."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
from collections.abc import Callable

from attacker import Attacker


def lying_files(attacker: Attacker, dice: random.Random) -> None:
    """A pipe, a socket, a directory, a device, a file of holes, one that cannot be read: as model files."""
    attacker.hello()
    for kind in dice.sample(FILES, len(FILES)):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            fd = FILES_BY_NAME[kind](folder, stack)
            attacker.post("load", (fd,), name=f"lie-{kind}", source=f"/{kind}.onnx", has_file=True)
            if dice.random() < 0.3:
                return  # does not wait for the answer
            reply, fds = attacker.answer()
            assert not fds
            assert reply.get("error"), f"{kind} was taken for a model"


def _pipe(_: str, stack: contextlib.ExitStack) -> int:
    read, write = os.pipe()
    stack.callback(os.close, write)
    stack.callback(os.close, read)
    return read


def _socket(_: str, stack: contextlib.ExitStack) -> int:
    return stack.enter_context(socket.socket(socket.AF_UNIX)).fileno()


def _opened(path: str, flags: int, stack: contextlib.ExitStack) -> int:
    fd = os.open(path, flags)
    stack.callback(os.close, fd)
    return fd


def _holes(folder: str, stack: contextlib.ExitStack) -> int:
    fd = _opened(f"{folder}/holes.onnx", os.O_RDWR | os.O_CREAT, stack)
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 1 << 43)
    return fd


def _write_only(folder: str, stack: contextlib.ExitStack) -> int:
    fd = _opened(f"{folder}/w.onnx", os.O_WRONLY | os.O_CREAT, stack)
    os.write(fd, b"x" * 100)
    return fd


def _empty(folder: str, stack: contextlib.ExitStack) -> int:
    return _opened(f"{folder}/empty.onnx", os.O_RDWR | os.O_CREAT, stack)


def _garbage(folder: str, stack: contextlib.ExitStack) -> int:
    fd = _opened(f"{folder}/garbage.onnx", os.O_RDWR | os.O_CREAT, stack)
    os.write(fd, os.urandom(10_000))
    return fd


FILES_BY_NAME: dict[str, Callable[[str, contextlib.ExitStack], int]] = {
    "pipe": _pipe,
    "socket": _socket,
    "directory": lambda folder, stack: _opened(folder, os.O_RDONLY, stack),
    "path": lambda folder, stack: _opened(folder, os.O_PATH, stack),
    "zero": lambda _, stack: _opened("/dev/zero", os.O_RDONLY, stack),
    "proc": lambda _, stack: _opened("/proc/self/maps", os.O_RDONLY, stack),
    "holes": _holes,
    "write-only": _write_only,
    "empty": _empty,
    "garbage": _garbage,
}
FILES = list(FILES_BY_NAME)
