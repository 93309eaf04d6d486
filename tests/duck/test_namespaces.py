"""A duck in one network namespace and its client in another, with a cable (veth) between them: two machines, nearly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from teal.duck.key import make_key

_MAIN = "from teal.cli import main; main()"
_CLIENT = """
import sys, json, numpy as np, teal
address, key_file, program, transport = sys.argv[1:]
with teal.Duck(address, key_file=key_file, tcp=transport == "tcp") as duck, duck.open(program) as session:
    x = np.random.default_rng(0).integers(0, 255, 2_000_000, np.uint8)
    session.map(x)
    total = int(session.call(b"s").numpy().view(np.uint64)[0])
    counted = [int(session.call(b"c").numpy()[0]) for _ in range(100)]
    print(json.dumps([total == int(x.sum(dtype=np.uint64)), counted[-1], duck.statistics()["client"]["sent_bytes"]]))
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def cable() -> Iterator[tuple[str, str, str]]:
    """Two namespaces and the address of the first one's end of the cable."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip(8), to make network namespaces")
    first, second = (f"teal-{os.getpid()}-{end}" for end in "ab")
    made = [
        ("ip", "netns", "add", first),
        ("ip", "netns", "add", second),
        ("ip", "-n", first, "link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", second),
        ("ip", "-n", first, "addr", "add", "10.231.77.1/24", "dev", "cable0"),
        ("ip", "-n", second, "addr", "add", "10.231.77.2/24", "dev", "cable1"),
        ("ip", "-n", first, "link", "set", "cable0", "up"),
        ("ip", "-n", second, "link", "set", "cable1", "up"),
    ]
    try:
        for command in made:
            if (done := run(*command)).returncode != 0:
                pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
        yield first, second, "10.231.77.1"
    finally:
        for name in (first, second):
            run("ip", "netns", "del", name)


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_a_program_is_called_across_a_cable(
    cable: tuple[str, str, str], program: Path, tmp_path: Path, transport: str
) -> None:
    first, second, address = cable
    key = tmp_path / "duck.key"
    key.write_text(make_key())
    key.chmod(0o600)
    serve = ["ip", "netns", "exec", first, sys.executable, "-c", _MAIN, "duck", "serve", "--name", f"ns{os.getpid()}",
             "--listen", f"{address}:7311", "--key-file", str(key), "--cache", str(tmp_path / "cache"), "--memory",
             "1G", "--json"]  # fmt: skip
    call = ["ip", "netns", "exec", second, sys.executable, "-c", _CLIENT, f"{address}:7311", str(key), str(program)]
    for sent in (2_000_000 + program.stat().st_size, 0):  # a restart of the duck in between
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as duck:
            try:
                assert duck.stdout is not None
                ready = duck.stdout.readline()
                assert ready, "the duck did not start"
                done = run(*call, transport)
                assert done.returncode == 0, done.stderr
                right, counted, crossed = json.loads(done.stdout)
                assert (right, counted, crossed) == (True, 100, sent)
            finally:
                duck.terminate()
        assert duck.returncode == 0
