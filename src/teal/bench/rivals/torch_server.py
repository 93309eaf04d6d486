"""PyTorch eager behind a server, three wires: the set-up that people start with.

HTTP: FastAPI on uvicorn (uvloop, httptools, one worker, no access log), an async endpoint that runs the model inline.
`json` is the first thing people write: lists of numbers both ways. `raw` sends the arrays' bytes. gRPC: a unary method
on the same bytes, threaded server with one worker. All over TCP on the loopback address, with TCP_NODELAY and a
connection kept alive. A call begins with a NumPy array in the client and ends with one: encoding and decoding are part
of it.
"""

from __future__ import annotations

import json
import socket
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import fastapi
import grpc
import numpy as np
import torch
import uvicorn

from . import export, http_client, lane, zoo
from .fastapi_ort import KEEP_ALIVE, Ready

SERVICE, METHOD = "teal.bench.Torch", "Run"
LONGEST = -1  # bytes of a gRPC message: no limit


class Runner:
    """The module, called on bytes or on lists."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._entry = zoo.ZOO[config["model"]]
        self._module = export.read(self._entry, Path(config["cache"]))
        self._one = self._entry.inputs(1, 0)
        self._row = sum(array.nbytes for array in self._one.values())

    @torch.inference_mode()
    def run(self, arrays: zoo.Arrays) -> Any:
        return self._module(*export.as_tensors(arrays)).numpy()

    def on_bytes(self, body: bytes) -> bytes:
        batch = len(body) // self._row
        like = {name: np.broadcast_to(array[:1], (batch, *array.shape[1:])) for name, array in self._one.items()}
        # A copy: torch wants memory that may be written.
        arrays = {name: array.copy() for name, array in zoo.unflat(body, like).items()}
        return bytes(self.run(arrays).tobytes())

    def on_lists(self, body: dict[str, Any]) -> Any:
        arrays = {name: np.array(body[name], self._one[name].dtype) for name in self._one}
        return self.run(arrays).tolist()


def application(runner: Runner) -> Any:
    """The two HTTP endpoints."""
    app = fastapi.FastAPI()

    async def raw(request: fastapi.Request) -> fastapi.Response:
        return fastapi.Response(runner.on_bytes(await request.body()), media_type="application/octet-stream")

    async def lists(request: fastapi.Request) -> fastapi.responses.JSONResponse:
        return fastapi.responses.JSONResponse({"out": runner.on_lists(await request.json())})

    for path, endpoint in (("/raw", raw), ("/json", lists)):
        # The endpoints' annotations are text here (postponed evaluation), and FastAPI resolves text among globals only.
        endpoint.__annotations__ = {"request": fastapi.Request}
        app.post(path, response_model=None)(endpoint)
    return app


def serve(config: dict[str, Any], protocol: TextIO) -> None:
    """Serves until killed."""
    torch.set_num_threads(config["threads"])
    runner = Runner(config)
    options = [("grpc.max_receive_message_length", LONGEST), ("grpc.max_send_message_length", LONGEST)]
    server = grpc.server(futures.ThreadPoolExecutor(1), options=options)
    method = grpc.unary_unary_rpc_method_handler(lambda body, _: runner.on_bytes(body))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
    server.add_insecure_port(f"127.0.0.1:{config['grpc']}")
    server.start()
    settings = uvicorn.Config(
        application(runner),
        host="127.0.0.1",
        port=config["http"],
        loop="uvloop",
        http="httptools",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    Ready(settings, protocol).run()


def variant(config: dict[str, Any], server: lane.Server, wire: str, batch: int) -> lane.Variant:
    """wire: json, raw or grpc."""
    arrays = zoo.ZOO[config["model"]].inputs(batch, 0)
    if wire == "json":
        post = http_client.poster(("127.0.0.1", config["http"]), "/json", "application/json")

        def call() -> Any:
            body = json.dumps({name: array.tolist() for name, array in arrays.items()}).encode()
            return np.array(json.loads(post(body))["out"], np.float32)

    elif wire == "raw":
        send = http_client.poster(("127.0.0.1", config["http"]), "/raw", "application/octet-stream")

        def call() -> Any:
            return np.frombuffer(send(zoo.flat(arrays)), np.float32)

    else:
        options = [("grpc.max_receive_message_length", LONGEST), ("grpc.max_send_message_length", LONGEST)]
        run = grpc.insecure_channel(f"127.0.0.1:{config['grpc']}", options=options).unary_unary(f"/{SERVICE}/{METHOD}")

        def call() -> Any:
            return np.frombuffer(run(zoo.flat(arrays)), np.float32)

    return server.variant(call, lambda: bytes(call().tobytes()))


def free_port() -> int:
    """A port of the loopback address that nobody listened on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def client(config: dict[str, Any]) -> lane.Contender:
    """config: model, batches, threads, cache, core, server_core."""
    zoo.read_text(Path(config["cache"]))
    config = config | {"http": free_port(), "grpc": free_port()}
    server = lane.Server(f"{__package__}.torch_server", config | {"core": config["server_core"]})
    return lane.Contender(
        variants={
            f"{wire} b{batch}": partial(variant, config, server, wire, batch)
            for batch in config["batches"]
            for wire in ("json", "raw", "grpc")
        },
        note=f"PyTorch eager, {config['threads']} threads, TCP",
        versions={"torch": torch.__version__, "fastapi": fastapi.__version__, "grpcio": grpc.__version__},
        close=server.close,
    )


if __name__ == "__main__":
    lane.main(client, serve)
