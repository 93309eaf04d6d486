"""One input to many ducks: by multicast what can be, singly the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from duck_numbers import number

import teal
from teal.cli import group as cli
from teal.duck import Group, Server
from teal.duck.key import make_key

KEY = make_key()


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    """Three; the last takes nothing from groups."""
    with ExitStack() as stack:
        made = []
        for multicast in ("127.0.0.1", "127.0.0.1", None):
            try:
                server = Server(
                    None, cache=False, memory=1 << 30, listen="127.0.0.1:0", key=KEY, multicast=multicast, spares=0
                )
            except teal.NotFound as error:  # no libcrypto
                pytest.skip(str(error))
            made.append(stack.enter_context(server))
        yield made


def port(more: int) -> int:
    return 20_000 + (os.getpid() + more) % 20_000


def test_an_input_for_three_ducks(servers: list[Server], program: Path) -> None:
    x = np.random.default_rng(5).integers(0, 255, 1_500_000, np.uint8)
    with ExitStack() as stack:
        ducks = [stack.enter_context(teal.Duck(server.listening, key=KEY)) for server in servers]
        sessions = [stack.enter_context(duck.open(program)) for duck in ducks]
        group = Group(ducks, interface="127.0.0.1", address=f"239.255.84.76:{port(0)}")
        blob = group.map(sessions, x)
        assert blob.nbytes == x.nbytes
        for session in sessions:
            assert number(session.call(b"s")) == int(x.sum(dtype=np.uint64))
        seen = group.statistics()
        came = [duck.statistics()["net"]["group_bytes"] for duck in ducks]
        assert seen.group_bytes == x.nbytes
        assert seen.single_bytes + sum(came) == 3 * x.nbytes
        assert came[2] == 0
        group.put(x)
        assert group.statistics().group_bytes == x.nbytes
        assert group.statistics().skipped_bytes == 3 * x.nbytes


def test_what_a_group_refuses(servers: list[Server]) -> None:
    with teal.Duck(servers[0].listening, key=KEY) as duck, servers[0].connect() as near:
        with pytest.raises(teal.InvalidArgument, match="no ducks"):
            Group([], interface="127.0.0.1")
        with pytest.raises(teal.InvalidArgument, match="on this machine"):
            Group([duck, near], interface="127.0.0.1")
        with pytest.raises(teal.InvalidArgument, match="datagram"):
            Group([duck], interface="127.0.0.1", datagram=100)
        with pytest.raises(teal.InvalidArgument, match="no multicast group"):
            Group([duck], interface="127.0.0.1", address="127.0.0.1:9976").put(b"refused")
    with pytest.raises(teal.InvalidArgument, match="listen="):
        Server(None, cache=False, memory=1 << 30, multicast="127.0.0.1")


def test_the_command(servers: list[Server], tmp_path: Path) -> None:
    key, file = tmp_path / "key", tmp_path / "weights"
    key.write_text(KEY)
    key.chmod(0o600)
    file.write_bytes(os.urandom(200_000))
    at = [str(server.listening) for server in servers[:2]]
    done = CliRunner().invoke(cli, ["duck", "put", str(file), *at, "--key-file", str(key), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["bytes"], found["sent_bytes"], found["multicast_bytes"]) == (200_000, 400_000, 0)
    again = CliRunner().invoke(cli, ["duck", "put", str(file), *at, "--key-file", str(key), "--multicast", "127.0.0.1"])
    assert again.exit_code == 0, again.output
    assert found["sha256"] in again.output
