"""Ducks that are announced are found, and no others."""

from __future__ import annotations

import pytest

import teal
from teal.duck import Server
from teal.duck.discovery import Announcement, find


def test_an_announced_duck_is_found() -> None:
    zeroconf = pytest.importorskip("zeroconf")
    with Server(None, cache=False, memory=1 << 30, listen="127.0.0.1:0") as server:
        try:
            announced = Announcement(server)
        except (OSError, zeroconf.Error) as error:
            pytest.skip(f"no multicast here: {error}")
        try:
            mine = [one for one in find(3.0) if server.name in one["name"]]
            if not mine:
                pytest.skip("multicast does not come back here")
            assert mine[0]["address"] == server.listening
            assert mine[0]["version"] == teal.__version__
            assert int(mine[0]["cores"]) > 0
        finally:
            announced.close()
    assert server.name not in {one["name"] for one in find(1.0)}


def test_a_duck_that_does_not_listen_is_not_announced() -> None:
    pytest.importorskip("zeroconf")
    with (
        Server(None, cache=False, memory=1 << 30) as server,
        pytest.raises(teal.InvalidArgument, match="give --listen too"),
    ):
        Announcement(server)
