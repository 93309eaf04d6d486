"""A session whose client is the kernel: memory in a BPF map, prepared slots, and a bell.

Theory of operation: this process makes the map (that takes CAP_BPF) and gives its descriptor to the host, which checks
that it is what it should be and formats it; workers map it like any region. The slots are made and called once each
from here, through the same code as any client's, so that a model that does not suit, or does not load, is known now,
and no event ever pays for a binding. Then the slots and the ring belong to the BPF programs. What they do is in
``teal_bpf.h``.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from dataclasses import dataclass
from typing import Any

from teal import _core
from teal.errors import Closed, InvalidArgument
from teal.host import wire
from teal.host.connection import Connection
from teal.host.inputs import shapes_of
from teal.host.model import Model
from teal.host.plan import PlanEntry, plan_bytes

_PAGE = 4096
_WARM_UP = 120.0  # seconds that a first call of a model may take
_ABSENT = 1


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """What BPF programs did with a session so far."""

    sent: int  # requests published
    full: int  # events that found no free slot: no verdict for them
    shut: int  # events that found the session closed
    bells: int  # requests for which a sleeping worker had to be woken
    left: int  # requests given up by the program
    failed: int  # requests that ended without a verdict
    out: int  # slots in the programs' hands now


class Session:
    """Slots of one model for BPF programs. ``with teal.bpf.Session(model, slots=64) as session: …``

    model: with outputs whose shapes are known before the run. slots: requests in flight, a power of two, at most 1024;
    one is taken from its event's send to its release. priority: of its requests, larger goes first. Symbolic
    dimensions or shapes are given as to ``Model.new_inputs``.
    Raises NotFound where bpf(2) is not permitted, InvalidArgument for a model that does not suit, QuotaExceeded,
    and what a first call of the model raises.
    """

    def __init__(self, model: Model, *, slots: int = 64, priority: int = 0, **dims: Any) -> None:
        inputs, outputs = model._homes.plans(shapes_of(model._input_specs, dims, model.name))
        _check_plans(model, inputs, outputs)
        self.model = model
        self.slots = slots
        self.nbytes = _map_bytes(slots, inputs, outputs)
        self._connection: Connection = model._host._connection
        self._pid = os.getpid()
        self.memory_fd = _core.bpf_create_memory(self.nbytes)
        self.bell_fd = -1
        self._slots: list[_core.Slot] = []
        self._bell: Any = None
        self._core: Any = None
        try:
            self.bell_fd = _core.bpf_create_bell()
            pool = str(model._described["pool"])
            self._core, self._index = self._open(pool)
        except BaseException:
            self._close_maps()
            raise
        self._finalizer = weakref.finalize(self, _close, self._connection, pool, self._index)
        try:
            self._prepare(inputs, outputs)
            self.layout: bytes = _core.bpf_layout(self._core, model._index, model._pinned, priority)
        except BaseException:
            self.close()
            raise

    def _open(self, pool: str) -> tuple[Any, int]:
        message = wire.OpenBpfSession(pool, self.slots)
        body, _ = self._connection.ask(message, (self.memory_fd,))
        fd = os.dup(self.memory_fd)
        memory = _core.bpf_session(
            fd, body["index"], body["epoch"], self.slots, self.nbytes, body["idle_ns"], self._connection.socket.fileno()
        )
        return memory, int(body["index"])

    def _prepare(self, inputs: list[PlanEntry], outputs: list[PlanEntry]) -> None:
        model = self.model
        home = _core.SlotHome(self._core, model._index, model._pinned, inputs, outputs, False, self.slots)
        loans = [home.loan() for _ in range(self.slots)]
        self._slots = [slot for slot in loans if slot is not None]
        if len(self._slots) != self.slots:
            raise InvalidArgument(f"{self.slots} slots of {model.name!r} do not fit {self.nbytes} bytes")
        if model.info.pure:
            self._warm_up()
        _core.bpf_hand_over(self._core, self._slots)
        self._bell = _core.Bell(self.bell_fd, self._core, model._session.core, self._connection.socket.fileno())

    def _warm_up(self) -> None:
        """Each slot once, on zeros: a kernel with effects is not run for this."""
        for slot in self._slots:
            slot.submit(0, 0)
        self.model._session.core.rouse()
        until = time.monotonic_ns() + int(_WARM_UP * 1e9)
        for slot in self._slots:
            if not slot.wait(until):
                raise InvalidArgument(f"{self.model.name!r} took longer than {_WARM_UP:g} s for its first calls")
            if not slot.plain_success():
                self.model._ended(slot)  # raises, unless its outputs are larger than their signature says
                raise InvalidArgument(f"{self.model.name!r} gives outputs of other shapes than its signature says")

    # ---- what a loader needs ---------------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """Of the session in its pool."""
        return self._index

    def statistics(self) -> SessionStatistics:
        """Counted by the programs themselves. Raises Closed."""
        self._check_open()
        return SessionStatistics(**_core.bpf_counts(self._core))

    @property
    def rung(self) -> int:
        """Times the bell's thread woke a worker."""
        self._check_open()
        return int(self._bell.rung)

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("this BPF session is closed")
        if self._pid != os.getpid():
            raise Closed("this BPF session was opened before fork(): open another one")

    @property
    def closed(self) -> bool:
        return self.memory_fd < 0

    # ---- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Programs get TEAL_BPF_CLOSED from now on; what waits is cancelled. Loaded programs keep the memory mapped."""
        if self.closed or self._pid != os.getpid():
            return
        _core.bpf_shut(self._core)
        if self._bell is not None:
            self._bell.stop()
        self._finalizer()
        self._close_maps()
        self._slots.clear()
        self._bell = self._core = None  # with them go the mappings

    def _close_maps(self) -> None:
        for fd in (self.memory_fd, self.bell_fd):
            if fd >= 0:
                os.close(fd)
        self.memory_fd = self.bell_fd = -1

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<teal.bpf.Session of {self.model.name!r}, {self.slots} slots{state}>"


def _close(connection: Connection, pool: str, index: int) -> None:
    with contextlib.suppress(Exception):  # the connection's end closes the session as well
        connection.ask(wire.CloseBpfSession(pool, index))


def _check_plans(model: Model, inputs: list[PlanEntry], outputs: list[PlanEntry]) -> None:
    for kind, plans in (("inputs", inputs), ("outputs", outputs)):
        for i, (dtype, shape, _, flags, *_) in enumerate(plans):
            if not flags & _ABSENT and (shape is None or dtype == "BYTES"):
                raise InvalidArgument(
                    f"{model.name!r}: a BPF program needs tensors whose shape is known before the run",
                    path=f"$.{kind}[{i}]",
                )


def _map_bytes(slots: int, inputs: list[PlanEntry], outputs: list[PlanEntry]) -> int:
    size = _core.bpf_tensors_at(slots) + _PAGE + slots * (plan_bytes(inputs) + plan_bytes(outputs))
    return int((size + 2 * _PAGE - 1) // _PAGE * _PAGE)
