"""The backend that torch.compile finds under the name "teal".

Theory of operation: Dynamo hands over a graph and example inputs. Without gradients AOTAutograd makes a functional
graph of it, and takes care of what a kernel in another process cannot: inputs that are written to, outputs that are
views of inputs. What is left is a Graph (graph.py). Where gradients are wanted, or an operator cannot run in a worker,
another compiler gets the graph, and a log line says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import CompileContext, TracingContext

from teal.compile.graph import Graph, graph_of
from teal.compile.options import Options
from teal.compile.program import Unsupported
from teal.compile.record import log, record
from teal.errors import InvalidArgument

Compiled = Callable[..., Any]
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def teal(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Compiles one graph. ``options``: see teal.compile.options.Options. Called by torch.

    Raises InvalidArgument for unknown options, and, with fallback="error", what speaks against the graph.
    """
    chosen = Options.of(options)
    if mode is not None:
        raise InvalidArgument(f"mode {mode!r}: backend 'teal' has options instead; leave it out", path="$.mode")
    record.count("graphs")
    _note_break(graph)
    _note_recompile()
    if torch.is_grad_enabled() and (wanting := _wanting_gradients(graph, example_inputs)):
        reason = (
            "requires a gradient, and kernels compute none: call the model under torch.no_grad() or inference_mode()"
        )
        return _fall_back(graph, example_inputs, Unsupported(wanting, reason), chosen)
    try:
        return _compiled(graph, example_inputs, chosen)
    except Unsupported as unsupported:
        if not unsupported.what:  # nothing to compute, nothing to say
            return graph.forward
        return _fall_back(graph, example_inputs, unsupported, chosen)


def _compiled(graph: fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> Compiled:
    made: list[Graph] = []

    def inference(module: fx.GraphModule, arguments: Sequence[Any]) -> Any:
        made.append(graph_of(module, options, _weights()))
        made[0].alone = _needs_nothing_around_it(len(arguments), example_inputs)
        return made[0]

    def training(module: fx.GraphModule, arguments: Sequence[Any]) -> Any:
        raise Unsupported("the graph", "has gradients, and kernels compute none")

    compiled: Compiled = aot_autograd(fw_compiler=training, inference_compiler=inference)(graph, example_inputs)
    return made[0].flat if made and made[0].alone else compiled


def _needs_nothing_around_it(count: int, example_inputs: Sequence[Any]) -> bool:
    """No input is written to, no output is a view, arguments go in as they come: the graph may be called as it is."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None or count != len(example_inputs):
        return False
    meta = context.fw_metadata
    plain = all(type(value) in _PLAIN or not isinstance(value, torch.Tensor) for value in example_inputs)
    changed = meta.num_mutated_inp_runtime_indices + meta.num_outputs_aliased + meta.num_intermediate_bases
    return plain and not changed and not meta.tokens


def _weights() -> list[int]:
    """Positions of parameters and buffers that the graph being compiled does not write to."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return []
    written = set(context.fw_metadata.mutated_inp_runtime_indices)
    return [at for at in context.fw_metadata.static_input_indices if at not in written]


def _wanting_gradients(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """Name of the first input that does."""
    names = [_shown(node) for node in graph.graph.nodes if node.op == "placeholder"]
    for i, value in enumerate(example_inputs):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            return names[i] if i < len(names) else f"input {i}"
    return ""


def _shown(node: fx.Node) -> str:
    """As the user wrote it, self.layers.0.weight, where Dynamo says where it comes from."""
    name = getattr(getattr(node, "_dynamo_source", None), "name", None)
    if not isinstance(name, str):
        return node.name
    return re.sub(r"\['(\w+)'\]", r".\1", re.sub(r"\._(?:modules|parameters|buffers)\b", "", name)).removeprefix("L.")


def _note_break(graph: fx.GraphModule) -> None:
    """Dynamo says of a graph why it ended, if not with its function."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return
    frame = reason.user_stack[-1] if reason.user_stack else None
    where = "an unknown place" if frame is None else f"{frame.filename}:{frame.lineno} ({frame.line})"
    record.broke(where, " ".join(str(reason.reason).split())[:300])


def _note_recompile() -> None:
    """torch had a graph of this code, and its guards do not hold for what is given now."""
    number = CompileContext.current_compile_id()
    if number is not None and number.frame_compile_id:
        log.warning(
            "graph %s: another one for code that had %d, whose guards do not hold (TORCH_LOGS=recompiles says which)",
            number,
            number.frame_compile_id,
        )
        record.count("recompiled")


def _fall_back(graph: fx.GraphModule, example_inputs: Sequence[Any], why: Unsupported, options: Options) -> Compiled:
    if options.fallback == "error":
        raise InvalidArgument(f"{why.what}: {why.reason}")
    record.fell_back(why.what, why.reason, f"the graph runs in this process ({options.fallback})")
    if options.fallback == "eager":
        return graph.forward
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(graph, list(example_inputs))
    return compiled  # type: ignore[no-any-return]
