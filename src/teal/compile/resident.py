"""A program and its weights, resident at a host.

Theory of operation: the kernel's name is made of the program (its graph, the versions, what was asked for), its version
number of the weights' contents. So whoever compiles the same finds it there, whichever process loaded it: it takes the
sealed weights from the host and points its own parameters at them. The host counts who holds a version, and unloads it
when the last connection that held it lets go or ends. What is let go of by the garbage collector is released by a
thread: it may come at any moment, also while this process talks to the host.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
import queue
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from teal import _core
from teal.compile.lanes import Given, Lanes, Taken
from teal.compile.options import Options
from teal.compile.program import Layout, Program
from teal.compile.record import record
from teal.compile.weights import Region, Weights, adopted, content_of, digests_of, layout_of, sealed
from teal.errors import InvalidArgument, NotFound, TealError
from teal.host import wire
from teal.host.host import Host
from teal.host.model import Model

_MOST_TRIES = 8
_MOST_SHAPES = 64  # sets of extents whose memory is kept


class Resident:
    """One program with one set of weights."""

    def __init__(self, host: Host, program: Program, options: Options, tensors: Sequence[torch.Tensor]) -> None:
        self.host = host
        self._program = program
        with torch.inference_mode(False):
            model, weights = _obtain(host, program, options, [*tensors, *program.constants])
        self.model = model
        self.weights = weights
        tensors_at = [(at, *seen) for at, seen in zip(program.weights, weights.watched, strict=False)]
        self.watch = _core.Watch(tensors_at, weights.ranges)
        self._lanes: dict[tuple[int, ...], Lanes] = {}
        record.count("resident")
        _start_releaser()
        weakref.finalize(self, _let_go, _Hold(host, model.name, model.version)).atexit = False

    def lanes(self, extents: tuple[int, ...]) -> Lanes:
        """Memory for calls with these values of the program's symbols."""
        lanes = self._lanes.get(extents)
        if lanes is None:
            values = dict(zip((symbol for _, symbol in self._program.symbols), extents, strict=True))
            inputs = [Given(at, layout, _shape(layout, values)) for at, layout in self._program.inputs]
            outputs = [Taken(layout, _shape(layout, values)) for layout in self._program.outputs]
            while len(self._lanes) >= _MOST_SHAPES:
                self._lanes.pop(next(iter(self._lanes)))
            lanes = self._lanes[extents] = Lanes(self.model, inputs, outputs)
        return lanes


def _shape(layout: Layout, values: dict[Any, int]) -> tuple[int, ...]:
    return tuple(e if isinstance(e, int) else int(e.node.expr.subs(values)) for e in layout.shape)


# ---- loading -----------------------------------------------------------------------------------------------------


def _obtain(host: Host, program: Program, options: Options, tensors: Sequence[torch.Tensor]) -> tuple[Model, Weights]:
    """Raises what Host.load does."""
    digests = digests_of(tensors)
    content = content_of(tensors, digests)
    asked = hashlib.sha256(
        f"{program.digest} {options.precision} {options.threads} {options.compile}".encode()
    ).hexdigest()
    name = f"{options.name}-{asked[:32]}"
    for attempt in range(_MOST_TRIES):
        salted = hashlib.sha256(f"{content} {attempt}".encode()).hexdigest()
        number = 1 + int(salted[:8], 16) % ((1 << 31) - 2)
        while True:
            found = _resident(host, name, number)
            if found is None:
                places = sealed(tensors, digests, move=options.move)
                described = _load(host, program, options, (name, number), content, layout_of(tensors, places), places)
                if described is None:
                    continue  # another process was faster
                record.count("loaded")
                break
            described, known, regions = found
            if known.get("content") != content:
                described = None  # other weights of the same number
                _left.put(_Hold(host, name, number))
                break
            places = adopted(tensors, digests, known["weights"], regions, move=options.move)
            record.count("shared")
            break
        if described is not None:
            return Model(host, described, pinned=True), Weights(tensors, places)
    raise InvalidArgument(f"{name}: {_MOST_TRIES} versions of other contents stand where this one should")


def _resident(host: Host, name: str, number: int) -> tuple[Any, dict[str, Any], list[Region]] | None:
    """What the host says of it, what its file says of its weights, and these; held from now on."""
    with _holding:
        try:
            described, fds = host._connection.ask(wire.Lookup(name, number, hold=True, files=True))
        except NotFound:
            return None
        _holds[_Hold(host, name, number)] += 1
    from torch.export.pt2_archive._package import PT2ArchiveReader

    # Mapped, not read: whoever has this file from the host has the same position in it, and torch begins there.
    try:
        with mmap.mmap(fds[0], 0, prot=mmap.PROT_READ) as file:
            layout = json.loads(PT2ArchiveReader(io.BytesIO(file[:])).read_string("extra/teal.json"))
    finally:
        os.close(fds[0])
    return described, layout, [Region.received(fd) for fd in fds[1:]]


def _load(
    host: Host,
    program: Program,
    options: Options,
    named: tuple[str, int],
    content: str,
    layout: dict[str, Any],
    places: Sequence[Any],
) -> Any:
    """What the host says of it; None when another process has loaded it meanwhile."""
    name, number = named
    regions = list(dict.fromkeys(place.region for place in places))
    fd = _core.sealed_file(f"teal:{name}", program.file({"content": content, "weights": layout}))
    message = wire.Load(
        name,
        f"{name}.pt2",
        "torch",
        number,
        threads=options.threads,
        precision=options.precision,
        has_file=True,
        timeout=options.timeout,
        options={"compile": "1" if options.compile else "0"},
        hold=True,
        sealed=len(regions),
    )
    try:
        described = host._connection.ask(message, (fd, *(region.fd for region in regions)))[0]
        with _holding:
            _holds[_Hold(host, name, number)] += 1
        return described
    except InvalidArgument as error:
        if error.path == "$.version":
            return None
        raise
    finally:
        os.close(fd)


# ---- letting go --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hold:
    host: Host
    name: str
    number: int


_holds: Counter[_Hold] = Counter()  # the host knows of one hold a connection, and this process may need several
_holding = threading.Lock()  # guards _holds, and what the host is told of them
_left: queue.SimpleQueue[_Hold] = queue.SimpleQueue()
_releaser: threading.Thread | None = None


def _let_go(hold: _Hold) -> None:
    record.count("resident", -1)
    _left.put(hold)


def _start_releaser() -> None:
    global _releaser
    if _releaser is None or not _releaser.is_alive():
        _releaser = threading.Thread(target=_release, name="teal-compile", daemon=True)
        _releaser.start()


def _release() -> None:
    while True:
        hold = _left.get()
        with _holding:
            _holds[hold] -= 1
            if _holds[hold] <= 0:
                del _holds[hold]
                with contextlib.suppress(TealError, OSError):  # the host is gone, and what it had for us with it
                    hold.host._connection.ask(wire.Release(hold.name, hold.number))
        del hold


def _forget_in_child() -> None:
    """The parent's connection, and what it holds, are the parent's."""
    global _holding, _left, _releaser
    _holding, _left, _releaser = threading.Lock(), queue.SimpleQueue(), None
    _holds.clear()


os.register_at_fork(after_in_child=_forget_in_child)
