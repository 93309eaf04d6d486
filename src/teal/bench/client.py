"""Teal's client as a lane: the calls of the public API that the benches time.

Every use of the API lies in one of the small functions below, so that what is timed can be read off.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from array import array
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from . import core
from .rivals import lane, work

IDENTITY, MLP, MINILM, RELOADED = "identity", "mlp", "minilm", "reloaded"
SWITCHED = tuple(f"mlp{i}" for i in range(8))


def identity_inputs(model: Any, nbytes: int) -> Any:
    """New inputs of the identity model in shared memory, filled; nbytes in all."""
    name = model.inputs[0].name
    x = model.new_inputs(**{name: ("uint8", (nbytes,))})
    x[name].numpy()[...] = np.frombuffer(work.payload(nbytes), np.uint8)
    return x


def mlp_inputs(model: Any) -> Any:
    """New inputs of the perceptron in shared memory, one row, filled."""
    x = model.new_inputs(batch=1)
    x["x"].numpy()[...] = np.frombuffer(work.mlp_input(), np.float32).reshape(1, work.MLP_IN)
    return x


def minilm_inputs(model: Any) -> Any:
    """New inputs of the sentence embedder in shared memory, one sequence of TOKENS tokens, filled."""
    known = {"input_ids": work.token_ids(), "attention_mask": 1, "token_type_ids": 0}
    x = model.new_inputs(**dict(zip(model.inputs[0].shape, (1, work.TOKENS), strict=True)))  # its names of dimensions
    for spec in model.inputs:
        x[spec.name].numpy()[...] = known[spec.name]
    return x


def answer_of(call: Callable[[], Any]) -> Callable[[], bytes]:
    """The same call, returning the bytes of its first output."""
    return lambda: np.asarray(call()[0]).tobytes()


def prepared(model: Any, x: Any) -> lane.Variant:
    """A call prepared once: nothing is copied, the answer's memory is reused. The fastest way."""
    call = model.prepare(**x)
    return lane.Variant(call, answer_of(call))


def prepared_inner(model: Any, x: Any) -> lane.Variant:
    """As prepared, and asks after each call how long the worker ran the maths; a Teal that cannot say is only timed."""
    call = model.prepare(**x)
    inner = (lambda: int(call.last_run_ns)) if hasattr(call, "last_run_ns") else None
    return lane.Variant(call, answer_of(call), inner=inner)


def plain(model: Any, x: Any) -> lane.Variant:
    """`model(**x)` on tensors that are in shared memory already: nothing is copied, the answer is new each time."""
    call = partial(model, **x)
    return lane.Variant(call, answer_of(call))


def copied(model: Any, x: Any) -> lane.Variant:
    """`model(array)` on an ordinary numpy array: one counted copy in."""
    arrays = [np.array(x[spec.name].numpy()) for spec in model.inputs]
    call = partial(model, *arrays)
    return lane.Variant(call, answer_of(call))


def fresh(model: Any, x: Any) -> lane.Variant:
    """A prepared call whose whole input the client writes anew before each."""
    view = x[model.inputs[0].name].numpy()
    source = np.array(view)
    call, move = model.prepare(**x), ctypes.memmove
    to, start, nbytes = view.ctypes.data, source.ctypes.data, view.nbytes

    def write_and_call() -> Any:
        move(to, start, nbytes)
        return call()

    return lane.Variant(write_and_call, answer_of(write_and_call), alive=(view, source))


def round_robin(calls: list[Callable[[], Any]]) -> lane.Variant:
    """One call after the other; used for one as for many, so that both pay for the going round."""
    following = itertools.cycle(calls).__next__

    def call_next() -> Any:
        return following()()

    return lane.Variant(call_next, answer_of(call_next))


class Client:
    """A connection to the host and the variants and questions it offers."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._subject: str = config["subject"]
        self._address: str = config["address"]
        self._core: int = config["core"]
        self._server_core: int = config["server_core"]
        settings = {"idle": config["idle"]} if "idle" in config else {}
        self._host = import_module(self._subject).connect(self._address, **settings)

    def _identity(self, way: Callable[[Any, Any], lane.Variant], nbytes: int) -> lane.Variant:
        model = self._host.model(IDENTITY)
        return way(model, identity_inputs(model, nbytes))

    def _mlp(self, way: Callable[[Any, Any], lane.Variant], name: str = MLP) -> lane.Variant:
        model = self._host.model(name)
        return way(model, mlp_inputs(model))

    def _minilm(self) -> lane.Variant:
        model = self._host.model(MINILM)
        return prepared_inner(model, minilm_inputs(model))

    def _switching(self, names: tuple[str, ...]) -> lane.Variant:
        return round_robin([self._mlp(prepared, name).call for name in names])

    def variants(self) -> dict[str, Callable[[], lane.Variant]]:
        ways = {"prepared": prepared, "plain": plain, "copied": copied, "fresh": fresh}
        found: dict[str, Callable[[], lane.Variant]] = {
            f"{size} {name}": partial(self._identity, way, nbytes)
            for size, nbytes in work.SIZES.items()
            for name, way in ways.items()
        }
        found |= {f"{MLP} {name}": partial(self._mlp, way) for name, way in ways.items()}
        found |= {
            f"{MLP} inner": partial(self._mlp, prepared_inner),
            MINILM: self._minilm,
            RELOADED: partial(self._mlp, plain, RELOADED),
            "one model": partial(self._switching, SWITCHED[:1]),
            "eight models": partial(self._switching, SWITCHED),
        }
        return found

    def core_times(self, n: int) -> dict[str, str]:
        """The calls and echoes that the core itself times; ns, encoded as the lanes' samples are."""
        calls = core.identity_core(self._subject, self._address, IDENTITY, work.SMALL, n, self._core)
        echoes = core.echo(self._subject, work.SMALL, n, self._core, self._server_core)
        return {"call": lane.encode(array("q", calls)), "echo": lane.encode(array("q", echoes))}

    def copies(self, n: int) -> dict[str, int]:
        """What n prepared and n plain calls on new_inputs add to the counters of copies, over all models used here."""
        total = {"copies_in": 0, "copies_out": 0, "bytes_copied": 0}
        for name in (IDENTITY, MLP):
            model = self._host.model(name)
            x = mlp_inputs(model) if name == MLP else identity_inputs(model, work.LARGE)
            call = model.prepare(**x)
            before = model.statistics()
            for _ in range(n):
                call()
                model(**x)
            after = model.statistics()
            for counter in total:
                total[counter] += int(getattr(after, counter)) - int(getattr(before, counter))
        return total


def attach(subject: str, address: str) -> int:
    """ns from a process that has only imported Teal to its first answer of a loaded model."""
    teal = import_module(subject)
    x = np.frombuffer(work.mlp_input(), np.float32).reshape(1, work.MLP_IN)
    start = time.perf_counter_ns()
    host = teal.connect(address)
    answer = np.asarray(host.model(MLP)(x)[0])
    elapsed = time.perf_counter_ns() - start
    if answer.size != work.MLP_OUT:
        raise RuntimeError(f"first answer has shape {answer.shape}, expected (1, {work.MLP_OUT})")
    return elapsed


def client(config: dict[str, Any]) -> lane.Contender:
    """config: subject, address, core, server_core; idle: how long its calls spin; once: only attach, and say how long
    it took."""
    if config.get("once"):
        elapsed = attach(config["subject"], config["address"])
        return lane.Contender(questions={"attach": lambda: elapsed})
    own = Client(config)
    return lane.Contender(
        variants=own.variants(),
        questions={"core": own.core_times, "copies": own.copies},
        note=f"another process, {'idle ' + config['idle'] if 'idle' in config else 'default idle'}",
    )


if __name__ == "__main__":
    lane.main(client)
