"""Keys, and who may listen where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import teal
from teal.duck import Server, key, net


def test_keys() -> None:
    text = key.make_key()
    assert key.make_key() != text
    assert len(key.key_from(text + "\n")) == 32
    for wrong in ("", "abc", text[:-1], text + "00", "g" * 64):
        with pytest.raises(teal.InvalidArgument) as caught:
            key.key_from(wrong)
        assert wrong == "" or wrong not in str(caught.value)  # a mistyped key is nearly a key


def test_a_key_file_is_for_one_user(tmp_path: Path) -> None:
    file = tmp_path / "duck.key"
    with pytest.raises(teal.NotFound, match="teal duck key"):
        key.read_key(file)
    text = key.make_key()
    file.write_text(text + "\n")
    for mode in (0o644, 0o640, 0o602):
        file.chmod(mode)
        with pytest.raises(teal.InvalidArgument, match="chmod 600"):
            key.read_key(file)
    file.chmod(0o600)
    assert key.read_key(file).hex() == text
    with pytest.raises(teal.InvalidArgument, match="not a regular file"):
        key.read_key("/dev/null")


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1:1", True), ("127.8.9.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("0.0.0.0:1", False),
     ("[::]:1", False), ("10.0.0.2:1", False), ("machine:1", False)],
)  # fmt: skip
def test_what_is_beyond_loopback(address: str, loopback: bool) -> None:
    assert net.is_loopback(net.split_address(address)[0]) == loopback


@pytest.mark.parametrize("address", ["7311", ":7311", "host:", "host:port", "host:99999"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(teal.InvalidArgument, match="HOST:PORT"):
        net.split_address(address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:0"])
def test_nobody_listens_beyond_loopback_without_a_key(address: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(teal.InvalidArgument, match="there is no key"):
        Server(None, cache=False, memory=1 << 30, listen=address)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_one_key_is_enough(tmp_path: Path) -> None:
    for make in (lambda **given: Server(None, cache=False, **given), lambda **given: teal.Duck("127.0.0.1:1", **given)):
        with pytest.raises(teal.InvalidArgument, match="one is enough"):
            make(key="0" * 64, key_file=tmp_path / "x")
    with pytest.raises(teal.InvalidArgument, match="takes no key"):
        teal.Duck("somebody", key="0" * 64)
