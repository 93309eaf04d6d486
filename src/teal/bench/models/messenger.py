"""A process that calls a resident model for a client that sends its arrays through a socket: shared memory off.

A message is a length (8 bytes, little endian) and the arrays' bytes one after the other; the answer likewise.
"""

from __future__ import annotations

import socket
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from teal.bench.rivals import lane, zoo

from .client import LENGTH, received


def serve(config: dict[str, Any], protocol: TextIO) -> None:
    """Serves one client until it leaves; config: subject, address, name, model, batch, socket, cache."""
    zoo.read_text(Path(config["cache"]))
    model = import_module(config["subject"]).connect(config["address"]).model(config["name"])
    like = zoo.ZOO[config["model"]].inputs(config["batch"], 0)
    inputs = model.new_inputs(**{key: array.shape for key, array in like.items()})
    places = {key: inputs[key].numpy() for key in like}
    call = model.prepare(**inputs)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(config["socket"])
        listener.listen(1)
        lane.ready(protocol)
        stream, _ = listener.accept()
    with stream:
        while True:
            try:
                body = received(stream)
            except EOFError:
                return
            for key, array in zoo.unflat(memoryview(body), like).items():
                np.copyto(places[key], array)
            answer = call()[0].numpy().tobytes()
            stream.sendall(LENGTH.pack(len(answer)) + answer)


if __name__ == "__main__":
    lane.main(lambda _: lane.Contender(), serve)
