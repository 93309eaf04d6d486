"""Teal's client as a lane of `teal bench models`: the same call with each of Teal's two halves taken away in turn.

    in place     a prepared call, the input lies in shared memory: what an engine in-process is compared with
    written      the client's NumPy array is written into shared memory before each call: what a server is compared with
    messages     shared memory off: the input and the answer go through a socket to a process that calls the model
    load each    residency off: the model is loaded, called once and unloaded

Every call ends with a NumPy array of the answer in the client.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from teal.bench.rivals import http_client, lane, zoo

LENGTH = struct.Struct("<Q")
FIRST_SEED = 1000


class Client:
    """config: subject, address, model (of the zoo), source, cache, batches."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._host = import_module(config["subject"]).connect(config["address"])
        self._servers: list[lane.Server] = []
        self._folder = tempfile.TemporaryDirectory(prefix="teal-bench-")

    def arrays(self, batch: int) -> zoo.Arrays:
        return zoo.ZOO[self._config["model"]].inputs(batch, 0)

    def _filled(self, name: str, batch: int) -> tuple[Any, Any, zoo.Arrays]:
        """The model, its inputs in shared memory with the common input in them, and the arrays of that input."""
        model, arrays = self._host.model(name), self.arrays(batch)
        inputs = model.new_inputs(**{key: array.shape for key, array in arrays.items()})
        for key, array in arrays.items():
            inputs[key].numpy()[...] = array
        return model, inputs, arrays

    def in_place(self, name: str, batch: int) -> lane.Variant:
        model, inputs, _ = self._filled(name, batch)
        call = model.prepare(**inputs)
        inner = (lambda: int(call.last_run_ns)) if hasattr(call, "last_run_ns") else None
        return lane.Variant(call, lambda: bytes(np.asarray(call()[0]).tobytes()), inner=inner)

    def written(self, name: str, batch: int) -> lane.Variant:
        model, inputs, arrays = self._filled(name, batch)
        call = model.prepare(**inputs)
        places = [inputs[key].numpy() for key in arrays]
        moves = [(p.ctypes.data, a.ctypes.data, a.nbytes) for p, a in zip(places, arrays.values(), strict=True)]
        answer, move = call()[0].numpy(), ctypes.memmove

        def write_and_call() -> Any:
            for to, start, nbytes in moves:
                move(to, start, nbytes)
            call()
            return answer  # a view of the output's memory, which every call writes anew

        return lane.Variant(write_and_call, lambda: bytes(write_and_call().tobytes()), alive=(places, arrays))

    def messages(self, name: str, batch: int) -> lane.Variant:
        address = str(Path(self._folder.name) / f"{name}-{batch}.sock")
        config = self._config | {"name": name, "batch": batch, "socket": address, "core": None}
        server = lane.Server("teal.bench.models.messenger", config)
        self._servers.append(server)
        stream, arrays = http_client.connect(address), self.arrays(batch)

        def call() -> Any:
            body = zoo.flat(arrays)
            stream.sendall(LENGTH.pack(len(body)) + body)
            return np.frombuffer(received(stream), np.float32)

        return server.variant(call, lambda: bytes(call().tobytes()))

    def load_each(self, name: str, batch: int) -> lane.Variant:
        """name: the model whose file and settings are loaded anew."""
        arrays, settings = self.arrays(batch), self._config["settings"][name]

        def call() -> Any:
            model = self._host.load("each", self._config["source"], **settings)
            answer = np.array(model(**arrays)[0].numpy())
            self._host.unload("each")
            return answer

        return lane.Variant(call, lambda: bytes(call().tobytes()))

    def error(self, name: str, reference: str, n: int) -> dict[str, Any]:
        """How far one resident model's answers are from another's, on n inputs other than those that are timed.

        error: relative L2 over all of them; worst: of one input; agreement: top-1, None where weights are random.
        """
        entry = zoo.ZOO[self._config["model"]]
        one, other = self._host.model(name), self._host.model(reference)
        answers, truths, squares = [], [], [0.0, 0.0]
        worst = 0.0
        for seed in range(FIRST_SEED, FIRST_SEED + n):
            arrays = entry.inputs(1, seed)
            answer, truth = (model(**arrays)[0].numpy().astype(np.float64) for model in (one, other))
            parts = float(np.sum((answer - truth) ** 2)), float(np.sum(truth**2))
            squares = [total + part for total, part in zip(squares, parts, strict=True)]
            worst = max(worst, (parts[0] / max(parts[1], 1e-60)) ** 0.5)
            if entry.real:
                answers.append(answer.ravel())
                truths.append(truth.ravel())
        agreement = nearest_agree(np.array(answers), np.array(truths)) if entry.real else None
        return {"error": (squares[0] / max(squares[1], 1e-60)) ** 0.5, "worst": worst, "agreement": agreement,
                "inputs": n}  # fmt: skip

    def variants(self) -> dict[str, Any]:
        ways = {
            "in place": self.in_place,
            "written": self.written,
            "messages": self.messages,
            "load each": self.load_each,
        }
        return {
            f"{name} {way} b{batch}": partial(make, name, batch)
            for name in self._config["settings"]
            for way, make in ways.items()
            for batch in self._config["batches"]
        }

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self._folder.cleanup()


def nearest_agree(answers: Any, truths: Any) -> float:
    """Share of the unit vectors whose nearest other is the same one: top-1 of a search among them."""
    chosen = []
    for vectors in (answers, truths):
        alike = vectors @ vectors.T
        np.fill_diagonal(alike, -np.inf)
        chosen.append(alike.argmax(1))
    return float(np.mean(chosen[0] == chosen[1]))


def received(stream: socket.socket) -> bytearray:
    """One message. Raises EOFError when the other end is gone."""
    (length,) = LENGTH.unpack(taken(stream, LENGTH.size))
    return taken(stream, length)


def taken(stream: socket.socket, length: int) -> bytearray:
    """So many bytes. Raises EOFError."""
    data = bytearray(length)
    view, at = memoryview(data), 0
    while at < length:
        got = stream.recv_into(view[at:])
        if got == 0:
            raise EOFError(f"the other end left after {at} of {length} bytes")
        at += got
    return data


def client(config: dict[str, Any]) -> lane.Contender:
    """config: as Client; settings: name of a resident model -> what it was loaded with."""
    zoo.read_text(Path(config["cache"]))
    own = Client(config)
    return lane.Contender(
        variants=own.variants(),
        questions={"error": own.error},
        note="another process, default idle",
        close=own.close,
    )


if __name__ == "__main__":
    lane.main(client)
