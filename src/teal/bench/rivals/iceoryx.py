"""iceoryx2 from Python: request-response, and two publish-subscribe topics (which tie no answer to its request).

Three kinds of round trip, because "zero copy" leaves open who writes the payload:

    bare    nobody writes it: the client loans and sends, the server loans and sends. The cost of transport alone;
            what arrives is whatever the memory held.
    echo    the request is sent as it lies, the server copies it into its answer: an answer lies in the server's
            memory, so an echo needs this one copy.
    fresh   as echo, and the client writes the whole request each time.

Best configuration found: payload types of fixed size (slices cost 0.7 us more), `payload_ptr` and memmove instead of
`payload()` and element access (1 us less each), service limits of one client and one server, both ends polling. Each
variant has a server of its own, because a server that looked at several services would be slower.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import iceoryx2

from . import lane, work

PATTERNS = ("request-response", "pub-sub")
KINDS = ("bare", "echo", "fresh")
SHARED_MEMORY, PREFIX = Path("/dev/shm"), "teal_bench_"  # where iceoryx2 keeps payloads; then the lane's number


def node(config: dict[str, Any]) -> Any:
    """A node whose files lie in the bench's own folder and whose shared memory bears its prefix."""
    iceoryx2.set_log_level(iceoryx2.LogLevel.Fatal)
    settings = iceoryx2.config.default()
    settings.global_cfg.prefix = iceoryx2.FileName.new(config["prefix"])
    settings.global_cfg.root_path = iceoryx2.Path.new(config["folder"])
    builder = iceoryx2.NodeBuilder.new().signal_handling_mode(iceoryx2.SignalHandlingMode.Disabled)
    return builder.config(settings).create(iceoryx2.ServiceType.Ipc)


def payload_type(nbytes: int) -> Any:
    """A structure of nbytes bytes."""
    return type(f"Payload{nbytes}", (ctypes.Structure,), {"_fields_": [("data", ctypes.c_uint8 * nbytes)]})


def exchange(own: Any, config: dict[str, Any]) -> Any:
    """The request-response service of a variant."""
    kind = payload_type(config["nbytes"])
    builder = own.service_builder(iceoryx2.ServiceName.new(config["service"])).request_response(kind, kind)
    return builder.max_clients(1).max_servers(1).open_or_create()


def topic(own: Any, config: dict[str, Any], way: str) -> Any:
    """One of the two topics of a variant; way: there or back."""
    kind = payload_type(config["nbytes"])
    name = iceoryx2.ServiceName.new(f"{config['service']} {way}")
    return own.service_builder(name).publish_subscribe(kind).max_publishers(1).max_subscribers(1).open_or_create()


def serve(config: dict[str, Any], protocol: TextIO) -> None:
    """Answers until killed; copies the request into the answer where the variant is an echo."""
    own, nbytes, copies = node(config), config["nbytes"], config["kind"] != "bare"
    move = ctypes.memmove
    if config["pattern"] == "pub-sub":
        receive = topic(own, config, "there").subscriber_builder().create().receive
        loan_answer = topic(own, config, "back").publisher_builder().create().loan_uninit
        lane.ready(protocol)
        while True:
            sample = receive()
            if sample is not None:
                answer = loan_answer()
                if copies:
                    move(answer.payload_ptr, sample.payload_ptr, nbytes)
                answer.assume_init().send()
    receive = exchange(own, config).server_builder().create().receive
    lane.ready(protocol)
    while True:
        request = receive()
        if request is not None:
            answer = request.loan_uninit()
            if copies:
                move(answer.payload_ptr, request.payload_ptr, nbytes)
            answer.assume_init().send()


def request_response(own: Any, config: dict[str, Any], source: int | None) -> Callable[[], Any]:
    """A function that makes one round trip and returns the response; source: address of what to write first."""
    loan, nbytes, move = exchange(own, config).client_builder().create().loan_uninit, config["nbytes"], ctypes.memmove

    def call() -> Any:
        request = loan()
        if source is not None:
            move(request.payload_ptr, source, nbytes)
        receive = request.assume_init().send().receive
        while (response := receive()) is None:
            pass
        return response

    return call


def publish_subscribe(own: Any, config: dict[str, Any], source: int | None) -> Callable[[], Any]:
    """As request_response, over two topics."""
    loan = topic(own, config, "there").publisher_builder().create().loan_uninit
    receive = topic(own, config, "back").subscriber_builder().create().receive
    nbytes, move = config["nbytes"], ctypes.memmove

    def call() -> Any:
        request = loan()
        if source is not None:
            move(request.payload_ptr, source, nbytes)
        request.assume_init().send()
        while (sample := receive()) is None:
            pass
        return sample

    return call


def variant(own: Any, config: dict[str, Any], servers: list[lane.Server]) -> lane.Variant:
    """Starts the variant's server and returns its call."""
    data = work.payload(config["nbytes"])
    source = ctypes.create_string_buffer(data, len(data)) if config["kind"] == "fresh" else None
    connect = publish_subscribe if config["pattern"] == "pub-sub" else request_response
    call = connect(own, config, None if source is None else ctypes.addressof(source))
    server = lane.Server(f"{__package__}.iceoryx", config | {"core": config["server_core"]})
    server.pause()
    servers.append(server)

    def answer() -> bytes:
        return ctypes.string_at(call().payload_ptr, len(data))

    found = server.variant(call, answer)
    found.alive = source
    if source is None:
        found.answer = None  # it would be what the memory happens to hold
    return found


def sweep() -> None:
    """Removes the shared memory of earlier lanes of this kind that were killed before they could."""
    for left in SHARED_MEMORY.glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).partition("_")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with suppress(OSError):
                left.unlink()


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core, server_core, folder."""
    sweep()
    config = config | {"prefix": f"{PREFIX}{os.getpid()}_", "folder": str(Path(config["folder"]) / "iceoryx2")}
    own, servers = node(config), []  # type: Any, list[lane.Server]
    variants = {}
    for size, nbytes in work.SIZES.items():
        for pattern in PATTERNS:
            for kind in KINDS:
                name = f"{size} {pattern} {kind}"
                details = {"nbytes": nbytes, "pattern": pattern, "kind": kind, "service": name}
                variants[name] = partial(variant, own, config | details, servers)

    def close() -> None:
        for server in servers:
            server.close()

    return lane.Contender(
        variants=variants,
        note="fixed-size payload, payload_ptr + memmove, both ends polling",
        versions={"iceoryx2": version("iceoryx2")},
        litter=[str(SHARED_MEMORY / f"{config['prefix']}*")],
        close=close,
    )


if __name__ == "__main__":
    lane.main(client, serve)
