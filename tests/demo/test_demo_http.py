"""The HTTP server of the comparison: right answers, and no request that breaks it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from teal.demo.embedder import encode, model_path
from teal.demo.http import HttpCall
from teal.errors import TealError


@pytest.fixture(scope="module")
def port(data: None) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "teal.demo.http"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield json.loads(server.stdout.readline())["port"]
        server.stdin.close()  # the server ends by itself
        assert server.wait() == 0


def test_answers_as_the_engine_does(port: int) -> None:
    from teal.demo.local import LocalCall, session

    call, local = HttpCall(port), LocalCall(session(model_path()))
    for text in ("Short.", "A longer text that needs another length. " * 5, "Short."):
        arrays = encode(text).arrays
        assert np.array_equal(call(**arrays), local(**arrays))
    call.close()


@pytest.mark.parametrize(
    ("shape", "body"),
    [("", b""), ("1,16", b"x" * 7), ("1,-1", b""), ("a,b", b""), ("1", b"x" * 24), ("1,99999999", b""), ("0,0", b"")],
)
def test_a_malformed_request_is_refused(port: int, shape: str, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/minilm", body, {"X-Shape": shape})
    assert connection.getresponse().status == 400
    connection.close()
    call = HttpCall(port)
    assert call(**encode("Still there?").arrays).shape[0] == 1
    call.close()


def test_a_refusal_is_an_error_of_the_call(port: int) -> None:
    call = HttpCall(port)
    with pytest.raises(TealError, match="400"):
        call(**{name: array[0] for name, array in encode("One dimension.").arrays.items()})
    call.close()
