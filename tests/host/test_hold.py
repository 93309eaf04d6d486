"""Models that connections hold: loaded while somebody needs them, and gone with the last one. liblaika loads so."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

import teal
from teal.host import wire


@pytest.fixture
def name(host: teal.Host) -> Iterator[str]:
    name = f"held-{uuid.uuid4().hex[:8]}"
    yield name
    if name in _loaded(host):
        host.unload(name)


def _loaded(host: teal.Host) -> set[str]:
    return {info.name for info in host.models()}


def _load(client: teal.Host, name: str, *, hold: bool) -> None:
    client._ask(wire.Load(name, "builtin:identity", hold=hold))


def _gone(host: teal.Host, name: str) -> bool:
    end = time.monotonic() + 10
    while name in _loaded(host) and time.monotonic() < end:
        time.sleep(0.005)
    return name not in _loaded(host)


def test_it_goes_with_its_last_holder(host: teal.Host, name: str) -> None:
    one, two = teal.connect(host.address), teal.connect(host.address)
    _load(one, name, hold=True)
    two._ask(wire.Lookup(name, hold=True))
    one.close()
    assert two._ask(wire.Lookup(name))["name"] == name  # answered after the host has heard of the end
    assert two.model(name)(1)[0].numpy() == 1
    two.close()
    assert _gone(host, name)


def test_it_goes_when_released(host: teal.Host, name: str) -> None:
    with teal.connect(host.address) as client:
        _load(client, name, hold=True)
        client._ask(wire.Release(name))
        assert name not in _loaded(host)
        client._ask(wire.Release(name))  # of nothing: fine
        with pytest.raises(teal.NotFound):
            client._ask(wire.Lookup(name, hold=True))


@pytest.mark.parametrize("how", ["loaded", "kept"])
def test_what_somebody_wants_to_stay_stays(host: teal.Host, name: str, how: str) -> None:
    client = teal.connect(host.address)
    _load(client, name, hold=True)
    if how == "loaded":
        _load(host, name, hold=False)  # a new version of it, to stay
    else:
        host._ask(wire.Lookup(name, keep=True))
    client._ask(wire.Release(name))
    client.close()
    assert name in _loaded(host)
    host.unload(name)
    # Nothing of that is remembered.
    with teal.connect(host.address) as other:
        _load(other, name, hold=True)
    assert _gone(host, name)


def test_holding_what_is_kept_changes_nothing(host: teal.Host, name: str) -> None:
    _load(host, name, hold=False)
    with teal.connect(host.address) as client:
        client._ask(wire.Lookup(name, hold=True))
        client._ask(wire.Release(name))
    assert name in _loaded(host)
