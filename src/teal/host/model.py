"""A model as its callers see it: loaned memory, calls, futures.

Theory of operation: a plain call loans a slot (homes.py), copies the arrays in (counted), submits, waits, and returns
tensors that show the slot's outputs; the slot goes home when the last of them is gone. ``new_inputs`` loans a slot
whose input tensors are filled in place; a call with those tensors copies nothing, and takes other outputs while
somebody looks at the last ones. Other tensors of this client's session are used where they are, as inputs and as
``out=``: the slot then has places, and keeps what lies there until the worker has let go of it. ``prepare`` keeps one
slot for itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from teal import _core
from teal.errors import Cancelled, InvalidArgument, NotFound, QuotaExceeded
from teal.host import arguments, callers, chain, wire
from teal.host.arguments import PLAIN_DTYPES
from teal.host.endings import DONE, SPILLED, error_of
from teal.host.event import Event, awaited
from teal.host.future import Future
from teal.host.homes import Homes
from teal.host.inputs import Inputs, shapes_of
from teal.host.outputs import Outputs
from teal.host.receivers import Receivers
from teal.host.records import Histogram, ModelInfo, ModelStatistics, TensorSpec, merged, paths_of, place
from teal.host.relay import Relay

if TYPE_CHECKING:
    from teal.host.host import Host


class Model:
    """A loaded model. Made by ``host.load`` and ``host.model``; call it with arrays by input name.

    Without a pinned version, calls go to whatever version is current when the request is taken: a reload under load
    loses no call.
    """

    def __init__(self, host: Host, described: Mapping[str, Any], *, pinned: bool) -> None:
        self._host = host
        self._index: int = described["index"]
        self._pinned = described["version"] if pinned else 0
        self._session = host._connection.session(described["pool"])
        self._session.register(self)
        self._notifier = self._session.notifier
        self._homes = Homes(self._session, self._index, self._pinned, host._connection.check_not_forked)
        self._describe(described)

    def _describe(self, described: Mapping[str, Any]) -> None:
        self.name: str = described["name"]
        self._described = dict(described)
        self._input_specs = [_spec(item) for item in described["inputs"]]
        self._output_specs = [_spec(item) for item in described["outputs"]]
        self._input_names = tuple(spec.name for spec in self._input_specs)
        self._positions = {name: i for i, name in enumerate(self._input_names)}
        self._output_names = tuple(spec.name for spec in self._output_specs)
        if (idle := described.get("idle_ns")) is not None:
            self._session.raise_idle(idle)
        # An engine that uses every core has none left for a caller that spins while it waits.
        may_spin = int(described["threads"]) < (os.cpu_count() or 1)
        self._homes.describe(self._input_specs, self._output_specs, may_spin=may_spin)

    # ---- what it is ----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version this handle was made for (pinned), or that was current then."""
        return int(self._described["version"])

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Signature of the inputs, in the model's order."""
        return tuple(_public(spec) for spec in self._input_specs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Signature of the outputs, in the model's order."""
        return tuple(_public(spec) for spec in self._output_specs)

    @property
    def info(self) -> ModelInfo:
        """What is loaded: source, digest, size, load time."""
        return info_of(self._described)

    # ---- calling -------------------------------------------------------------------------------------------------

    def __call__(
        self, *arrays: Any, deadline: float | None = None, priority: int = 0, out: Any = None, **inputs: Any
    ) -> Outputs:
        """Runs the model on arrays given by input name (or in order, or as one mapping).

        Tensors of this host (``new_inputs``, ``host.empty``, outputs), and packed NumPy views of them, are used where
        they are. Other NumPy, torch (CPU) and DLPack arrays are copied once into shared memory, and counted.
        ``out``: memory of the same kind that receives the outputs in place: a tensor, or a sequence or mapping of
        them with None for outputs without one; they come back in Outputs. ``deadline``: seconds from now;
        ``priority``: larger goes first. Inputs with the names of these three are given in a mapping.
        An input may be a Future, or an output of one (``future["name"]``): see submit.
        Returns tensors in shared memory.
        Raises InvalidArgument, DeadlineExceeded, KernelFailed, PeerDied, Cancelled, QuotaExceeded, NotFound, Closed,
        Busy (a request that is out uses the memory of ``out``).
        """
        given = out
        if out is not None:
            out = self._receivers(out, arrays, inputs)
        try:
            slot = self._filled(arrays, inputs, out)
        except chain.ToComeError:
            return self.submit(*arrays, deadline=deadline, priority=priority, out=given, **inputs).result()
        if deadline is not None or priority != 0 or not slot.call_direct(0):  # else a resident device kernel did it
            self._submit(slot, deadline, priority)
            slot.wait(0)
        return self._ended(slot, out)

    def submit(
        self,
        *arrays: Any,
        deadline: float | None = None,
        priority: int = 0,
        out: Any = None,
        after: Event | Future | Sequence[Event | Future] | None = None,
        **inputs: Any,
    ) -> Future:
        """The same without waiting: a Future with result(), cancel(), done(), and awaitable.

        after: futures and events (``host.event()``), at most 7: it runs once all of them have ended well, without a
        way back to this process; when one ends otherwise it is cancelled. Memory that they write may be its inputs.

        An input may be a Future with one output, or ``future["name"]``: it runs as soon as that is there, on whatever
        worker is free, with the output where it is, also when its shape is known only then. At most 7 different
        requests, those of ``after`` among them. It ends as Cancelled when one of them ends without an answer, and as
        InvalidArgument when the output does not suit. Outputs of another pool or host are passed on by this process.
        """
        given = out
        if out is not None:
            out = self._receivers(out, arrays, inputs)
        sources = chain.Sources(self._session)
        try:
            slot = self._filled(arrays, inputs, out, sources)
        except chain.ElsewhereError:
            return self._relayed(arrays, inputs, deadline, {"priority": priority, "out": given, "after": after})
        except Cancelled as error:
            return Future.ended(self, Cancelled(self.name, source=error.source, reason=error.reason))
        if not sources.slots:
            self._submit(slot, deadline, priority, after)
            return Future(self, slot, out)
        self._submit(slot, deadline, priority, after, sources.slots)
        for future in sources.futures:
            self._session.lend(future)
        return Future(self, slot, out, sources.stages)

    def new_inputs(self, **dims: Any) -> Inputs:
        """Input tensors in shared memory, to be filled in place.

        Keywords are the model's symbolic dimensions (``batch=1``) or whole shapes by input name (``x=(1, 3)``); a
        shape of an input without a dtype in the
        signature is given as ``x=("float32", (1, 3))``. Raises InvalidArgument naming what is missing, QuotaExceeded.
        """
        slot = self._homes.loan(shapes_of(self._input_specs, dims, self.name))
        tensors = ((name, slot.input(i)) for i, name in enumerate(self._input_names))
        return Inputs({name: tensor for name, tensor in tensors if tensor is not None})

    def prepare(
        self, *arrays: Any, deadline: float | None = None, priority: int = 0, out: Any = None, **inputs: Any
    ) -> _core.Call:
        """A prepared call: ``call()`` runs on these inputs, read anew each time, and returns the same Outputs object.

        Where the size of an output is only known after the run it is a new object each time. With tensors in shared
        memory nothing is ever copied; arrays are copied once, now. ``deadline``: seconds, for
        each call. The memory of inputs and ``out`` is kept as long as the call.
        """
        if out is not None:
            out = self._receivers(out, arrays, inputs)
        timeout = 0 if deadline is None else max(1, arguments.nanoseconds(deadline))
        priority = arguments.priority(priority)
        for name, value in arguments.named(arrays, inputs, self._input_names, self.name).items():
            chain.check_pinned(value, f"$.inputs[{self._positions.get(name, 0)}]")
        slot = self._filled(arrays, inputs, out)
        names = self._output_names
        tensors = [slot.output(i) for i in range(len(names))]
        if out is not None:
            out.show(tensors)
        outputs = Outputs.of([tensor for tensor in tensors if tensor is not None], names)
        ended = self._ended if out is None else lambda slot: self._ended(slot, out)
        return _core.Call(slot, outputs, ended, timeout, priority, lambda slot: self._renewed(slot, out))

    # ---- numbers -------------------------------------------------------------------------------------------------

    def statistics(self) -> ModelStatistics:
        """Counters and stage histograms of the version that is current (or pinned), since it was loaded."""
        raw = self._host._raw_statistics()
        wanted = ("version", self._pinned) if self._pinned else ("current", True)
        mine = [line for line in raw["models"] if line["name"] == self.name and line[wanted[0]] == wanted[1]]
        if not mine:
            self._host._ask(wire.Lookup(self.name, self._pinned or None))  # says what there is instead
            raise NotFound(f"model {self.name!r} is not loaded any more")
        numbers = raw["versions"][place(mine[0]["pool"], mine[0]["line"])]
        stages = numbers["stages"]
        seen = raw["callers"].get(place(mine[0]["pool"], self._index)) or callers.summed([])
        return ModelStatistics(
            requests=numbers["requests"] + (seen["direct"] if mine[0]["device"] else 0),
            failed=numbers["failed"],
            cancelled=numbers["cancelled"],
            expired=numbers["expired"],
            in_flight=numbers["in_flight"],
            copies_in=numbers["copies_in"] + seen["copies_in"],
            copies_out=numbers["copies_out"],
            bytes_copied=numbers["bytes_copied"] + seen["bytes_in"],
            bindings=numbers["bindings"],
            stages={
                "queue": Histogram.of(_pairs(stages["queue"])),
                "run": Histogram.of(_pairs(stages["run"])),
                "copy": Histogram.of(merged(_pairs(stages["copy"]), _pairs(seen["copy"]))),
                "wake": Histogram.of(_pairs(seen["wake"])),
                "total": Histogram.of(_pairs(seen["total"])),
            },
            device=mine[0]["device"],
            path=mine[0]["path"],
            paths=paths_of(numbers, seen["direct"]),
            batches={int(batch): path for batch, path in mine[0]["batches"].items()},
            fallbacks=numbers["fallbacks"],
            chained=numbers["chained"],
            relayed=seen["relayed"],
            runs_together=numbers["batches"],
            batched=numbers["batched"],
            held=numbers["held"],
            preemptions=numbers["preemptions"],
            yields=numbers["yields"],
            resumed=numbers["resumed"],
            cannot_preempt=numbers["cannot_preempt"],
            dropped=numbers["dropped"],
            losses=mine[0]["losses"],
            note=mine[0]["note"],
        )

    def unload(self) -> None:
        """Unloads the pinned version, or every version of this name. Requests in flight finish first."""
        self._host.unload(self.name, self._pinned or None)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a teal.Model belongs to its process; give host.address, and teal.connect(address).model(name) there"
        )

    def __repr__(self) -> str:
        return f"teal.Model({self.name!r}, version={self.version}{', pinned' if self._pinned else ''})"

    # ---- inside --------------------------------------------------------------------------------------------------

    def _renewed(self, slot: _core.Slot, out: Receivers | None) -> _core.Slot | None:
        """A slot on the inputs of this one, whose outputs did not fit.

        None: there is no room for one, or it has strings, which cannot be used in place.
        """
        tensors = ((name, slot.input(i)) for i, name in enumerate(self._input_names))
        inputs = {name: tensor for name, tensor in tensors if tensor is not None}
        if any(tensor.dtype == "BYTES" for tensor in inputs.values()):
            return None
        with contextlib.suppress(QuotaExceeded):  # then they come in a region of their own again
            return self._filled((), inputs, out)
        return None

    def _receivers(self, out: Any, arrays: tuple[Any, ...], inputs: dict[str, Any]) -> Receivers:
        if "out" in self._positions and "out" not in arguments.named(arrays, inputs, self._input_names, self.name):
            raise InvalidArgument(
                f"memory for the outputs, but {self.name!r} has an input 'out' too; give that one in a mapping, as in "
                "model({'out': …}, out=…)",
                path="$.out",
            )
        return Receivers(out, self._output_names, self._session.core)

    def _filled(
        self,
        arrays: tuple[Any, ...],
        inputs: dict[str, Any],
        out: Receivers | None,
        sources: chain.Sources | None = None,
    ) -> _core.Slot:
        """A slot that holds these inputs. ``sources``: takes note of those that are to come, else ToComeError."""
        named = arguments.named(arrays, inputs, self._input_names, self.name) if arrays else inputs
        if out is None and (slot := self._slot_of(named)):
            return self._ready(slot)
        prepared: list[Any] = []  # what goes into the slot: arrays, packed strings, places
        given: list[Any] = []  # what finds it
        placed = out is not None
        for i, spec in enumerate(self._input_specs):
            value = named.get(spec.name)
            if type(value) is np.ndarray and value.base is None and (name := PLAIN_DTYPES.get(value.dtype)) is not None:
                prepared.append(value)  # nearly all there is
                given.append((name, value.shape, 0))
                continue
            if value is None:
                array, entry = None, None
            elif isinstance(value, chain.TO_COME):
                if sources is None:
                    raise chain.ToComeError
                array, entry = sources.described(value, spec, f"$.inputs[{i}]")
            else:
                array, entry = arguments.described(value, spec, f"$.inputs[{i}]", self._session.core)
            placed = placed or type(array) is _core.Place
            prepared.append(array)
            given.append(entry)
        if len(named) > len(self._positions) or any(name not in self._positions for name in named):
            unknown = sorted(name for name in named if name not in self._positions)
            raise InvalidArgument(f"{unknown}: not inputs of {self.name!r}; it has {list(self._input_names)}")
        if placed:
            places = [array if type(array) is _core.Place else None for array in prepared]
            slot = self._homes.loan_over(given, places, out)
            prepared = [None if type(array) is _core.Place else array for array in prepared]
        else:
            slot = self._homes.loan(tuple(given))
        for i, array in enumerate(prepared):
            if array is None:
                continue
            if isinstance(array, bytes):
                slot.write_packed(i, array)
            else:
                slot.write(i, array)
        return slot

    def _submit(
        self,
        slot: _core.Slot,
        deadline: float | None,
        priority: int,
        after: object = None,
        sources: Sequence[_core.Slot] = (),
    ) -> None:
        try:
            until = 0 if deadline is None else max(1, time.monotonic_ns() + arguments.nanoseconds(deadline))
            if after is None and not sources:
                slot.submit(priority, until)
            else:
                slot.submit_after(priority, until, [*sources, *awaited(self._session, after)])
        except BaseException as error:
            slot.give_up()
            if isinstance(error, TypeError):  # only what comes from outside: an order of priority that is no number
                arguments.priority(priority)
            raise

    def _relayed(
        self, arrays: tuple[Any, ...], inputs: dict[str, Any], deadline: float | None, options: dict[str, Any]
    ) -> Relay:
        """The same once the outputs that it takes from elsewhere are there."""
        named = arguments.named(arrays, inputs, self._input_names, self.name)
        futures = [
            value if isinstance(value, Future) else value._future
            for value in named.values()
            if isinstance(value, chain.TO_COME)
        ]
        mine = self._session.core
        waiting = [one for one in futures if not one.done() and (one._slot is None or one._slot.session is not mine)]
        mine.count_relayed(self._index)
        return Relay(self, waiting, lambda left: self.submit(dict(named), deadline=left, **options), deadline)

    def _slot_of(self, named: Mapping[str, Any]) -> _core.Slot | None:
        """The slot all of these tensors are the inputs of, if there is one."""
        for value in named.values():
            slot = _core.slot_of(value) if type(value) is _core.Tensor else None
            return slot if slot is not None and self._owns(slot, named) else None
        return None

    def _ready(self, slot: _core.Slot) -> _core.Slot:
        """The slot, or one with outputs of its own on the same inputs while somebody looks at this one's."""
        try:
            chosen = slot.ready()
        except QuotaExceeded:
            chosen = None
        return chosen or self._session.with_room(slot.ready, slot.nbytes)

    def _owns(self, slot: _core.Slot, named: Mapping[str, Any]) -> bool:
        given = 0
        for name, value in named.items():
            position = self._positions.get(name)
            if position is None or type(value) is not _core.Tensor or slot.place_of(value) != position:
                return False
            given += 1
        return given == slot.n_given and slot.is_for(self._session.core, self._index, self._pinned)

    def forget_idle(self) -> None:
        """Gives the memory of slots that nobody holds back to the session."""
        self._homes.forget_idle()

    def _ended(
        self, slot: _core.Slot, out: Receivers | None = None, stages: Mapping[int, str] | None = None
    ) -> Outputs:
        """The outputs of a slot whose request has ended. Raises what ended it."""
        state, reason, detail, *_ = slot.result()
        if state == DONE:
            tensors = slot.outputs()
            if reason == SPILLED or out is not None:
                spilled = self._take_spilled(slot, detail) if reason == SPILLED else {}
                if out is not None:
                    out.put(tensors, spilled, slot)
                for i, tensor in spilled.items():
                    tensors[i] = tensor
            return Outputs.of([tensor for tensor in tensors if tensor is not None], self._output_names)
        message = slot.message()
        slot.give_up()
        stage = None if stages is None else stages.get(detail)
        raise error_of(
            state,
            reason,
            detail,
            message,
            model=self.name,
            version=self._pinned,
            limit=self._session.limit,
            stage=stage,
        )

    def _take_spilled(self, slot: _core.Slot, number: int) -> dict[int, _core.Tensor]:
        """Outputs larger than planned, by index: taken from the host, and planned for from now on."""
        layout, fd, lease = self._session.take_spill(number)
        spilled = _core.spilled_tensors(
            fd, [(dtype, tuple(shape), at, size) for _, dtype, shape, at, size in layout], lease
        )
        self._homes.learn(slot, {index: size for index, _, _, _, size in layout})
        return {index: tensor for (index, *_), tensor in zip(layout, spilled, strict=True)}


def _pairs(buckets: Any) -> list[tuple[int, int]]:
    return [(int(floor), int(count)) for floor, count in buckets]


def _spec(item: Mapping[str, Any]) -> wire.Spec:
    return wire.Spec(**item)


def _public(spec: wire.Spec) -> TensorSpec:
    shape = None if spec.shape is None else tuple(spec.shape)
    return TensorSpec(spec.name, spec.dtype, shape, spec.like, spec.optional, spec.in_place)


def info_of(described: Mapping[str, Any]) -> ModelInfo:
    """The public record of what a host says of a version."""
    fields = (
        "name",
        "version",
        "kernel",
        "source",
        "pool",
        "current",
        "pinned",
        "pure",
        "idempotent",
        "bytes",
        "digest",
        "seconds",
        "uid",
        "device",
        "path",
        "engine",
        "precision",
        "threads",
        "weights",
        "memory",
        "parked",
        "takes_batches",
        "concurrency",
        "preemption",
        "snapshot",
    )
    return ModelInfo(
        **{name: described[name] for name in fields},
        kept=tuple(described["kept"]),
        inputs=tuple(_public(_spec(item)) for item in described["inputs"]),
        outputs=tuple(_public(_spec(item)) for item in described["outputs"]),
    )
