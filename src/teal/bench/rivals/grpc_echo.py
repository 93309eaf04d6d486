"""gRPC over TCP loopback: a unary method that sends its 64 bytes back. What a remote call usually costs in Python.

The configuration is that of `grpc_ort`, over TCP: raw bytes, no message classes, a stub made once.
"""

from __future__ import annotations

from concurrent import futures
from functools import partial
from typing import Any, TextIO

import grpc

from . import lane, work

SERVICE, METHOD = "teal.bench.Echo", "Run"


def serve(config: dict[str, Any], protocol: TextIO) -> None:
    """Echoes until killed."""
    methods = {METHOD: grpc.unary_unary_rpc_method_handler(lambda request, _: request)}
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(config["address"])
    server.start()
    lane.ready(protocol)
    server.wait_for_termination()


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core, server_core, folder."""
    address = f"127.0.0.1:{work.free_port()}"
    server = lane.Server(f"{__package__}.grpc_echo", config | {"core": config["server_core"], "address": address})

    def echo() -> lane.Variant:
        channel = grpc.insecure_channel(address)
        call = partial(channel.unary_unary(f"/{SERVICE}/{METHOD}"), work.payload(work.SMALL))
        return server.variant(call)

    return lane.Contender(
        variants={"echo": echo},
        note="raw bytes, threaded server with one worker, TCP loopback, prebuilt stub",
        versions={"grpcio": grpc.__version__},
        close=server.close,
    )


if __name__ == "__main__":
    lane.main(client, serve)
