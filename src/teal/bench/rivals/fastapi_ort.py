"""FastAPI + onnxruntime: the body is the input's raw bytes, the answer the output's.

Best configuration found: uvicorn with uvloop and httptools, one worker, no access log, no date or server header, an
async endpoint that runs the model inline (a thread pool costs more than this model), a UNIX socket (10 us less than TCP
over loopback), a connection kept alive.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

import fastapi
import numpy as np
import uvicorn

from . import http_client, inprocess, lane, work

KEEP_ALIVE = 3600  # seconds; longer than any pause between two turns


class Ready(uvicorn.Server):  # type: ignore[misc,unused-ignore]
    """A server that says when it listens."""

    def __init__(self, settings: Any, protocol: TextIO) -> None:
        super().__init__(settings)
        self._protocol = protocol

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        lane.ready(self._protocol)


def serve(config: dict[str, Any], protocol: TextIO) -> None:
    """Serves the MLP until killed."""
    model = inprocess.session(config["mlp"])
    app = fastapi.FastAPI()

    async def infer(request: fastapi.Request) -> fastapi.Response:
        x = np.frombuffer(await request.body(), np.float32).reshape(-1, work.MLP_IN)
        return fastapi.Response(model.run(None, {"x": x})[0].tobytes(), media_type="application/octet-stream")

    # The endpoint's annotations are text here (postponed evaluation), and FastAPI resolves text among globals only.
    infer.__annotations__ = {"request": fastapi.Request, "return": fastapi.Response}
    app.post("/infer")(infer)
    settings = uvicorn.Config(
        app,
        uds=config["socket"],
        loop="uvloop",
        http="httptools",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    Ready(settings, protocol).run()


def client(config: dict[str, Any]) -> lane.Contender:
    """config: core, server_core, folder, mlp."""
    address = str(Path(config["folder"]) / "fastapi.sock")
    server = lane.Server(f"{__package__}.fastapi_ort", config | {"core": config["server_core"], "socket": address})
    body = work.mlp_input()

    def library() -> lane.Variant:
        return server.variant(http_client.library(address, "/infer", body, "application/octet-stream"))

    def hand() -> lane.Variant:
        return server.variant(http_client.hand(address, "/infer", body, 4 * work.MLP_OUT))

    return lane.Contender(
        variants={"mlp": library, "mlp by hand": hand},
        note="raw bytes, uvicorn with uvloop and httptools, async endpoint, UNIX socket, kept alive, http.client",
        versions={"fastapi": fastapi.__version__, "uvicorn": uvicorn.__version__},
        close=server.close,
    )


if __name__ == "__main__":
    lane.main(client, serve)
