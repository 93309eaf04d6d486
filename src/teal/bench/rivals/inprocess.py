"""onnxruntime in the process itself: what a call costs when nothing stands around the maths.

Three ways to call the same session, slowest first; the fastest of them is the base of every `added` and `overhead`
figure. `raw` goes below the public method, to the object that it wraps, with its binding and run options made once:
no documented call is faster. `timed` is `raw` with a clock around it in C, as a Teal worker has one around its
kernels: what a Python caller sees beyond it is what a call in its own process costs around the maths. Runs under
Teal's python (base of Teal's figures) and the rivals' (base of theirs).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort

from . import lane, work


def session(path: str) -> Any:
    """The settings that every contender uses: one thread, sequential, all graph optimisations, CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def mlp_feeds() -> dict[str, Any]:
    return {"x": np.frombuffer(work.mlp_input(), np.float32).reshape(1, work.MLP_IN)}


def minilm_feeds(inputs: list[str]) -> dict[str, Any]:
    """Token numbers, a mask of ones and segment zero, each int64 of shape (1, TOKENS)."""
    ids = np.array([work.token_ids()], np.int64)
    known = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {name: known[name] for name in inputs}


def variant(path: str, kind: str, way: str) -> lane.Variant:
    """kind: mlp or minilm; way: run, iobinding, raw or timed (where Teal is installed)."""
    model = session(path)
    feeds = mlp_feeds() if kind == "mlp" else minilm_feeds([i.name for i in model.get_inputs()])
    if way == "run":
        call = partial(model.run, None, feeds)
        return lane.Variant(call, answer=lambda: bytes(call()[0].tobytes()))
    binding = model.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
    results = [ort.OrtValue.ortvalue_from_numpy(np.empty_like(out)) for out in model.run(None, feeds)]
    for output, result in zip(model.get_outputs(), results, strict=True):
        binding.bind_ortvalue_output(output.name, result)
    # Run options made once save `raw` 0.5 us; the public method spends 24 us looking into them (onnxruntime 1.32).
    bound: Callable[[], object]
    if way == "iobinding":
        bound = partial(model.run_with_iobinding, binding)
    else:
        bound = partial(model._sess.run_with_iobinding, binding._iobinding, ort.RunOptions())

    inner = None
    if way == "timed":
        from teal._core import Timed

        clocked = Timed(bound)
        bound, inner = clocked, lambda: int(clocked.last_run_ns)

    def answer() -> bytes:
        bound()
        return bytes(results[0].numpy().tobytes())

    # The binding points into them and does not own them.
    return lane.Variant(bound, answer, inner, alive=(feeds, results))


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core; models: kind -> path of the ONNX file."""
    return lane.Contender(
        variants={
            f"{kind} {way}": partial(variant, path, kind, way)
            for kind, path in config["models"].items()
            for way in ("run", "iobinding", "raw", "timed")
        },
        note="1 thread, inputs and outputs bound once",
        versions={"onnxruntime": ort.__version__, "numpy": np.__version__},
    )


if __name__ == "__main__":
    lane.main(client)
