"""LitServe + onnxruntime: one worker, the tensor as base64 in JSON (LitServe hands raw bodies to JSON only).

Best configuration found: one API server in a thread, uvloop and httptools, no request timeout, base64 of the raw bytes
instead of a list of numbers, a connection kept alive over loopback TCP (LitServe takes no UNIX socket). `fast_queue`
is not faster at one request at a time.
"""

from __future__ import annotations

import base64
import json
import socket
from typing import Any, TextIO

import litserve
import numpy as np

from . import http_client, inprocess, lane, work

KEEP_ALIVE = 3600  # seconds; longer than any pause between two turns


class Mlp(litserve.LitAPI):  # type: ignore[misc,unused-ignore]
    """The four steps that LitServe asks for."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def setup(self, device: str) -> None:
        self._model = inprocess.session(self._path)

    def decode_request(self, request: dict[str, str]) -> Any:
        return np.frombuffer(base64.b64decode(request["x"]), np.float32).reshape(-1, work.MLP_IN)

    def predict(self, x: Any) -> Any:
        return self._model.run(None, {"x": x})[0]

    def encode_response(self, output: Any) -> dict[str, str]:
        return {"y": base64.b64encode(output.tobytes()).decode()}


def serve(config: dict[str, Any], protocol: TextIO) -> None:
    """Serves the MLP until killed."""
    server = litserve.LitServer(Mlp(config["mlp"]), accelerator="cpu", devices=1, workers_per_device=1, timeout=False)
    lane.ready(protocol)  # run() does not return and says nothing: the client waits for the port
    server.run(
        host="127.0.0.1",
        port=config["port"],
        log_level="error",
        generate_client_file=False,
        num_api_servers=1,
        api_server_worker_type="thread",
        loop="uvloop",
        http="httptools",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core, server_core, mlp."""
    port = free_port()
    server = lane.Server(f"{__package__}.litserve_ort", config | {"core": config["server_core"], "port": port})
    body = json.dumps({"x": base64.b64encode(work.mlp_input()).decode()}).encode()

    def mlp() -> lane.Variant:
        post = http_client.library(("127.0.0.1", port), "/predict", body, "application/json")
        return server.variant(post, lambda: base64.b64decode(json.loads(post())["y"]))

    return lane.Contender(
        variants={"mlp": mlp},
        note="base64 in JSON, one worker, uvloop and httptools, loopback TCP, kept alive, http.client",
        versions={"litserve": litserve.__version__},
        close=server.close,
    )


if __name__ == "__main__":
    lane.main(client, serve, family=True)
