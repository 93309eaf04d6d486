"""Named caches: who was used least recently goes, lengths are exact, a name has one content."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from teal.duck.cache import Cache
from teal.duck.classic.store import Store
from teal.duck.shelf import Shelf


def name(i: int) -> str:
    return f"{i:064x}"


def made(most: int = 10, nbytes: int = 1 << 20, folder: Path | None = None) -> tuple[Store, Cache]:
    cache = Cache("data", nbytes, Shelf(folder, wanted=folder is not None))
    return Store(cache, most), cache


def has(store: Store, i: int, data: bytes) -> bool:
    with store.using(name(i), len(data)) as blob:
        return blob is not None


def test_names_that_are_used_least_go() -> None:
    store, cache = made(most=2)
    assert store.store(name(1), memoryview(b"one"))
    assert store.store(name(2), memoryview(b"two"))
    assert has(store, 1, b"one")
    assert store.store(name(3), memoryview(b"three"))
    assert (has(store, 1, b"one"), has(store, 2, b"two"), has(store, 3, b"three")) == (True, False, True)
    assert store.numbers()["evicted"] == 1
    assert store.numbers()["objects"] == 2
    cache.close()


def test_bytes_that_are_used_least_go() -> None:
    store, cache = made(nbytes=2 * 4096)  # a blob takes whole pages
    for i in (1, 2):
        assert store.store(name(i), memoryview(bytes([i]) * 4096))
    assert has(store, 1, bytes(4096))
    assert store.store(name(3), memoryview(bytes(4096)))
    assert [has(store, i, bytes(4096)) for i in (1, 2, 3)] == [True, False, True]
    assert not store.store(name(4), memoryview(bytes(3 * 4096)))  # larger than all of it
    cache.close()


def test_lengths_are_exact() -> None:
    store, cache = made()
    store.store(name(1), memoryview(b"quack"))
    for length in (0, 4, 6, 2**63):
        with store.using(name(1), length) as blob:
            assert blob is None
    assert has(store, 1, b"quack")
    assert (store.numbers()["hits"], store.numbers()["misses"]) == (1, 4)
    cache.close()


def test_storing_again() -> None:
    store, cache = made()
    assert store.store(name(1), memoryview(b"quack"))
    assert store.store(name(1), memoryview(b"quack"))
    assert not store.store(name(1), memoryview(b"quick"))  # a digest is that of one content
    assert not store.store(name(2), memoryview(b""))
    assert store.numbers()["stored"] == 1
    assert has(store, 1, b"quack")
    cache.close()


def test_names_that_are_a_sha256_survive(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"quack").hexdigest()
    for first in (True, False):
        store, cache = made(folder=tmp_path / "cache")
        if first:
            assert store.store(digest, memoryview(b"quack"))
            assert store.store(name(1), memoryview(b"quack"))
        with store.using(digest, 5) as blob:
            assert blob is not None
        assert has(store, 1, b"quack") == first  # a name of its own is not on disk
        cache.close()


@pytest.mark.parametrize("drop", [True, False])
def test_forgotten_names(drop: bool) -> None:
    store, cache = made()
    store.store(name(1), memoryview(b"quack"))
    if drop:
        store.forget()
    assert has(store, 1, b"quack") != drop
    cache.close()
