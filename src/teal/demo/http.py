"""The same model behind a plain HTTP server, as the comparison: what most people put in front of a model.

Run as `python -m teal.demo.http`: it binds a free port of the loopback address, loads the model, prints one JSON line
with the port, and serves until its standard input closes, so that it never outlives whoever started it.

It is made to be a fair rival: raw bytes and not JSON, connections kept alive, Nagle's delay off on both sides, one
write per answer, the same engine with the same number of threads, one thread per connection. It is the standard
library's server: one written in C saves some tens of microseconds of the few hundred (`teal bench call` measures those
that people deploy). It moves the same tensors as the other ways do, token vectors and not the pooled one.

Request: POST, header X-Shape "1,LENGTH", body the int64 inputs one after the other. Answer: X-Shape and float32 bytes.
"""

from __future__ import annotations

import http.client
import http.server
import json
import sys
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.demo.embedder import INPUTS, LENGTHS, OUTPUT, WIDTH, model_path
from teal.demo.footprint import resident_bytes
from teal.errors import TealError

_LONGEST_BODY = len(INPUTS) * LENGTHS[-1] * 8
_TIMEOUT = 60.0  # seconds without an answer before a call gives up


class HttpCall:
    """`call(**arrays)` over one kept-alive connection to the server on `port`; each answer is an array of its own."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)

    def __call__(self, **arrays: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        shape = arrays[INPUTS[0]].shape
        body = b"".join(arrays[name].tobytes() for name in INPUTS)
        self._connection.request("POST", "/minilm", body, {"X-Shape": ",".join(map(str, shape))})
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise TealError(f"the HTTP server answered {answer.status}: {data[:200].decode('utf-8', 'replace')}")
        returned = tuple(int(size) for size in answer.headers["X-Shape"].split(","))
        return np.frombuffer(data, np.float32).reshape(returned)

    def close(self) -> None:
        """Close the connection; the server goes on."""
        self._connection.close()


class _Connection(http.server.BaseHTTPRequestHandler):
    """One client's connection; `server.engine` is the session all of them share."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered: headers and body leave in one write

    def do_POST(self) -> None:
        engine: Any = self.server.engine  # type: ignore[attr-defined]
        try:
            length = int(self.headers.get("Content-Length", "0"))
            shape = tuple(int(size) for size in self.headers.get("X-Shape", "").split(","))
        except ValueError:
            self._refuse("Content-Length and X-Shape must be whole numbers")
            return
        sound = len(shape) == 2 and min(shape) > 0 and length == len(INPUTS) * 8 * shape[0] * shape[1]
        if not sound or length > _LONGEST_BODY:
            self._refuse(f"expected X-Shape BATCH,LENGTH and at most {_LONGEST_BODY} bytes of int64 inputs")
            return
        flat = np.frombuffer(self.rfile.read(length), np.int64).reshape(len(INPUTS), *shape)
        (hidden,) = engine.run([OUTPUT], dict(zip(INPUTS, flat, strict=True)))
        self.send_response(200)
        self.send_header("Content-Length", str(hidden.nbytes))
        self.send_header("X-Shape", f"{shape[0]},{shape[1]},{WIDTH}")
        self.end_headers()
        self.wfile.write(memoryview(hidden).cast("B"))

    def _refuse(self, why: str) -> None:
        self.close_connection = True  # the body was not read, so the connection cannot carry another request
        self.send_error(400, why)

    def log_message(self, *_: object) -> None:
        """No line per request: the caller measures, and lines on a terminal would be measured too."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    engine: Any


def main() -> None:
    """Serve until standard input closes; the first line printed is the JSON event "ready"."""
    from teal.demo.local import session

    start = time.perf_counter()
    server = _Server(("127.0.0.1", 0), _Connection)
    server.engine = session(model_path())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ready = {
        "event": "ready",
        "port": server.server_address[1],
        "load_ms": (time.perf_counter() - start) * 1e3,
        "resident_bytes": resident_bytes(),
    }
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        if line.strip() == "footprint":
            print(json.dumps({"event": "footprint", "resident_bytes": resident_bytes()}), flush=True)
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
