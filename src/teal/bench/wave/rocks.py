"""RocksDB as resident functions: a GET, and a RANGE that yields between its steps.

The data: KEYS keys of 8 bytes, values of VALUE bytes, all in memory (page cache and block cache), made once by `fill()`
in the folder that TEAL_BENCH_ROCKS names; the worker opens it read-only at its first request.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import teal

FOLDER = "TEAL_BENCH_ROCKS"
KEYS = 100_000
VALUE = 64  # bytes
LOOKUPS = 3  # of one GET: about 10 us here, the function's call included
STEP = 100  # entries between two yields of a RANGE: about 25 us
ENTRIES = 40_000  # of a RANGE: about 10 ms


def fill(folder: Path) -> None:
    """Makes the data. Raises ImportError without rocksdict."""
    from rocksdict import Options, Rdict

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(folder), options)
    for number in range(KEYS):
        database[number.to_bytes(8, "big")] = number.to_bytes(8, "little") * (VALUE // 8)
    database.flush()
    database.close()


@cache
def database() -> Any:
    from rocksdict import AccessType, Options, Rdict

    return Rdict(os.environ[FOLDER], Options(raw_mode=True), access_type=AccessType.read_only())


@teal.signature(inputs={"key": ("int64", ())}, outputs={"bytes": ("int64", ())}, pure=True)
def get(key: np.ndarray[Any, Any]) -> np.int64:
    """LOOKUPS keys from `key` on; the bytes found."""
    number, found = int(key), 0
    get = database().get
    for offset in range(LOOKUPS):
        found += len(get(((number + offset) % KEYS).to_bytes(8, "big")))
    return np.int64(found)


@teal.signature(inputs={"key": ("int64", ())}, outputs={"bytes": ("int64", ())}, pure=True)
def scan(key: np.ndarray[Any, Any]) -> Generator[None, None, np.int64]:
    """ENTRIES entries from `key` on, round the end; the bytes found. Yields every STEP of them."""
    cursor, found = database().iter(), 0
    cursor.seek((int(key) % KEYS).to_bytes(8, "big"))
    for number in range(ENTRIES):
        if not cursor.valid():
            cursor.seek_to_first()
        found += len(cursor.value())
        cursor.next()
        if number % STEP == STEP - 1:
            yield
    return np.int64(found)


@teal.signature(inputs={"key": ("int64", ())}, outputs={"bytes": ("int64", ())}, pure=True)
def scan_at_once(key: np.ndarray[Any, Any]) -> np.int64:
    """As scan(), in one go."""
    steps = scan(key)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return np.int64(end.value)
