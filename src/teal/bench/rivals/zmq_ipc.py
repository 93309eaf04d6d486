"""pyzmq over a UNIX socket (ipc://): a pair of sockets, the server sends back the very message that it got.

Both ways of waiting are measured, since neither is best everywhere: `block` sleeps in the kernel, `poll` asks without
waiting (a lower median, and a far worse tail, since it starves ZeroMQ's own I/O thread). Messages from 64 KiB up are
sent and received without ZeroMQ's own copy (copy=False); the kernel's copies into and out of the socket remain.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import zmq

from . import lane, work

COPY_BELOW = 64 * 1024  # bytes; pyzmq's own advice: tracking a zero-copy message costs more than a small copy


def receiver(socket: Any, config: dict[str, Any]) -> Callable[[], Any]:
    """A function that waits for one message in the variant's way."""
    copy = config["nbytes"] < COPY_BELOW
    if config["wait"] == "block":
        return partial(socket.recv, copy=copy)

    def poll() -> Any:
        while True:
            try:
                return socket.recv(zmq.NOBLOCK, copy=copy)
            except zmq.Again:
                continue

    return poll


def serve(config: dict[str, Any], protocol: TextIO) -> None:
    """Echoes until killed."""
    socket: Any = zmq.Context(io_threads=1).socket(zmq.PAIR)
    socket.bind(config["address"])
    receive, send, copy = receiver(socket, config), socket.send, config["nbytes"] < COPY_BELOW
    lane.ready(protocol)
    while True:
        send(receive(), copy=copy)


def variant(config: dict[str, Any], servers: list[lane.Server]) -> lane.Variant:
    """Starts the variant's server and returns its call."""
    server = lane.Server(f"{__package__}.zmq_ipc", config | {"core": config["server_core"]})
    servers.append(server)
    socket: Any = zmq.Context(io_threads=1).socket(zmq.PAIR)
    socket.connect(config["address"])
    nbytes, send, receive = config["nbytes"], socket.send, receiver(socket, config)
    copy = nbytes < COPY_BELOW
    data = work.payload(nbytes)
    message = ctypes.create_string_buffer(data, nbytes)

    def echo() -> Any:
        send(message, copy=copy)
        return receive()

    def fresh() -> Any:
        ctypes.memmove(message, data, nbytes)
        send(message, copy=copy)
        return receive()

    call = fresh if config["kind"] == "fresh" else echo
    server.pause()
    return server.variant(call, lambda: bytes(memoryview(call())))


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core, server_core, folder."""
    servers: list[lane.Server] = []
    variants = {}
    for size, nbytes in work.SIZES.items():
        for wait in ("block", "poll"):
            for kind in ("echo", "fresh"):
                name = f"{size} {wait} {kind}"
                address = f"ipc://{Path(config['folder'])}/zmq-{nbytes}-{wait}-{kind}"
                details = {"nbytes": nbytes, "wait": wait, "kind": kind, "address": address}
                variants[name] = partial(variant, config | details, servers)

    def close() -> None:
        for server in servers:
            server.close()

    return lane.Contender(
        variants=variants,
        note="PAIR over ipc://, one I/O thread, copy=False from 64 KiB",
        versions={"pyzmq": zmq.__version__, "zeromq": zmq.zmq_version()},
        close=close,
    )


if __name__ == "__main__":
    lane.main(client, serve)
