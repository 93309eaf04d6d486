"""One compiled graph: what torch calls, again and again, with flat arguments.

Theory of operation: torch's guards have seen to it that the arguments have the dtypes, ranks and extents the graph was
made for. What they do not see is whether the weights still are what the worker has: identities, version counters,
addresses and written pages say so, before every call. If they differ, another set of weights is found (layers that
share their code), or sealed and loaded. Nothing stale is ever returned: what cannot be loaded runs in this process, and
says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from teal.compile import hosts
from teal.compile.options import Options
from teal.compile.program import Program, Unsupported, program_of
from teal.compile.record import log, record
from teal.compile.resident import Resident
from teal.errors import Closed, PeerDied, TealError

_MOST_RESIDENT = 64  # sets of weights of one graph that are kept


class Graph:
    """Raises Unsupported. ``weights``: positions of the arguments that stay what they are."""

    _boxed_call = True  # torch hands the arguments over in a list that is ours
    alone = False  # needs none of what AOTAutograd does around a graph

    def __init__(self, module: fx.GraphModule, weights: Sequence[int], options: Options) -> None:
        self._module = module
        self._options = options
        self._program: Program = program_of(module, weights)
        self._symbols = tuple(at for at, _ in self._program.symbols)
        self._plain = all(kind == "kernel" and i == number for i, (kind, number) in enumerate(self._program.returned))
        self._finding = threading.Lock()
        self._residents: dict[tuple[int, ...], Resident] = {}
        self._resident: Resident | None = None  # that was used last
        self._instead: Callable[..., Any] | None = None  # what runs the graph where no worker does
        self._buckets = options.buckets if options.buckets and _is_a_batch(self._program) else ()
        if self._symbols:
            record.count("dynamic")
            if options.buckets and not self._buckets:
                log.warning("buckets do not apply to a graph whose extent is not the first one of whatever has it")
            log.info("a graph with symbolic extents: %s", ", ".join(str(s) for _, s in self._program.symbols))

    def flat(self, *arguments: Any) -> Any:
        """The same, as Dynamo calls a graph."""
        return self(list(arguments))

    def __call__(self, arguments: list[Any]) -> Any:
        if self._instead is not None:
            return self._instead(*arguments)
        resident = self._resident
        if resident is None or not resident.watch.unchanged(arguments):
            resident = self._find(arguments)
            if resident is None:
                return self._elsewhere(arguments)
        extents = tuple([arguments[at] for at in self._symbols]) if self._symbols else ()
        bucket = next((size for size in self._buckets if size >= extents[0]), None) if self._buckets else None
        try:
            if bucket is None:
                outputs = resident.lanes(extents).run(arguments)
            else:
                outputs = resident.lanes((bucket,)).run_padded(arguments, extents[0])
        except (Closed, PeerDied) as error:
            return self._lost(resident, arguments, error)
        return outputs if self._plain else self._returned(outputs, arguments, extents)

    def _returned(self, outputs: list[torch.Tensor], arguments: list[Any], extents: tuple[int, ...]) -> list[Any]:
        values: list[Any] = []
        for kind, value in self._program.returned:
            if kind == "kernel":
                values.append(outputs[value])
            elif kind == "argument":
                values.append(arguments[value])
            elif kind == "number":
                known = zip((symbol for _, symbol in self._program.symbols), extents, strict=True)
                values.append(int(value.subs(dict(known))))
            else:
                values.append(value)
        return values

    # ---- weights -------------------------------------------------------------------------------------------------

    def _find(self, arguments: list[Any]) -> Resident | None:
        """The resident kernel for these weights, made if there is none. None: it cannot be had, which was said."""
        with self._finding:
            tensors = [arguments[at] for at in self._program.weights]
            key = tuple(id(tensor) for tensor in tensors)
            resident = self._residents.get(key)
            if resident is not None and resident.weights.alive() and resident.watch.unchanged(arguments):
                self._resident = resident
                return resident
            if resident is not None:
                record.count("changed")
                log.info("weights of %s were changed: sealing and loading them anew", resident.model.name)
            try:
                host = hosts.find(self._options.host)
                made = Resident(host, self._program, self._options, tensors)
            except TealError as error:
                self._give_up(error)
                return None
            for dead in [k for k, other in self._residents.items() if not other.weights.alive()]:
                del self._residents[dead]
            while len(self._residents) >= _MOST_RESIDENT:
                self._residents.pop(next(iter(self._residents)))
            self._residents[key] = self._resident = made
            return made

    # ---- where no worker runs it ---------------------------------------------------------------------------------

    def _give_up(self, error: TealError) -> None:
        """From now on the graph runs here. Raises ``error`` if that is not wanted."""
        if self._options.fallback == "error":
            raise error
        record.fell_back(type(error).__name__, str(error), f"the graph runs in this process ({self._options.fallback})")
        self._instead = self._local()

    def _local(self) -> Callable[..., Any]:
        if self._options.fallback == "inductor":
            return torch.compile(self._module, backend="inductor")
        return self._module

    def _elsewhere(self, arguments: list[Any]) -> Any:
        assert self._instead is not None
        return self._instead(*arguments)

    def _lost(self, resident: Resident, arguments: list[Any], error: TealError) -> Any:
        """The host is gone. The call that saw it die runs here; the next one looks for another host."""
        with self._finding:
            hosts.forget(resident.host)
            self._resident = None
            self._residents = {k: other for k, other in self._residents.items() if other.host is not resident.host}
        record.count("attached")
        if isinstance(error, Closed):  # no call was out: it was closed, or this is a forked child
            log.info("%s: attaching anew", error)
            return self(arguments)
        if self._options.fallback == "error":
            raise error
        record.fell_back("host", str(error), "this call runs in this process, the next one looks for a host")
        return self._module(*arguments)


def _is_a_batch(program: Program) -> bool:
    """One symbol, which is the first extent of the tensors that have it, and no other of theirs."""
    if len(program.symbols) != 1:
        return False
    for layout in (*(layout for _, layout in program.inputs), *program.outputs):
        open_at = [axis for axis, extent in enumerate(layout.shape) if not isinstance(extent, int)]
        if open_at and (open_at != [0] or layout.order is not None or not layout.shape[0].node.expr.is_Symbol):
            return False
    return True


def graph_of(module: fx.GraphModule, options: Options, weights: Sequence[int]) -> Graph:
    """What AOTAutograd is given for a graph without gradients. Raises Unsupported."""
    if not any(node.op == "call_function" for node in module.graph.nodes):
        raise Unsupported("", "nothing to compute")
    return Graph(module, weights, options)
