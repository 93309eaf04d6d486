"""gRPC + onnxruntime: a unary method on raw bytes, with no message classes around them.

Best configuration found: the threaded server with one worker thread over a UNIX socket (grpc.aio, with or without
uvloop, is no faster), a stub made once, no serialiser on either side.
"""

from __future__ import annotations

from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import grpc
import numpy as np

from . import inprocess, lane, work

SERVICE, METHOD = "teal.bench.Model", "Run"


def serve(config: dict[str, Any], protocol: TextIO) -> None:
    """Serves the MLP until killed."""
    model = inprocess.session(config["mlp"])

    def run(request: bytes, _: Any) -> bytes:
        x = np.frombuffer(request, np.float32).reshape(-1, work.MLP_IN)
        return bytes(model.run(None, {"x": x})[0].tobytes())

    methods = {METHOD: grpc.unary_unary_rpc_method_handler(run)}
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(config["address"])
    server.start()
    lane.ready(protocol)
    server.wait_for_termination()


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core, server_core, folder, mlp."""
    address = f"unix:{Path(config['folder']) / 'grpc.sock'}"
    server = lane.Server(f"{__package__}.grpc_ort", config | {"core": config["server_core"], "address": address})

    def mlp() -> lane.Variant:
        call = partial(grpc.insecure_channel(address).unary_unary(f"/{SERVICE}/{METHOD}"), work.mlp_input())
        return server.variant(call)

    return lane.Contender(
        variants={"mlp": mlp},
        note="raw bytes, threaded server with one worker, UNIX socket, prebuilt stub",
        versions={"grpcio": grpc.__version__},
        close=server.close,
    )


if __name__ == "__main__":
    lane.main(client, serve)
