"""Client and host of different versions: each says both, and nothing else happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from crash_host import CrashHost

import teal
from teal import _core
from teal.host import wire

CLIENT = """
import sys
import teal
from teal import _core
from teal.host import connection, wire
connection.__version__ = "9.9.9"
{change}
try:
    teal.connect(sys.argv[1])
except teal.VersionMismatch as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("change", "protocol", "abi"),
    [
        ("wire.PROTOCOL = 77", 77, _core.ABI_VERSION),
        ("_core.ABI_VERSION = 78", wire.PROTOCOL, 78),
        ("wire.PROTOCOL = 0; _core.ABI_VERSION = 2**64 - 1", 0, 2**64 - 1),
    ],
)
def test_other_client(change: str, protocol: int, abi: int, hosts: Callable[..., CrashHost]) -> None:
    host = hosts()
    with teal.connect(host.address) as attached:
        identity = attached.load("identity", "builtin:identity")
        output = subprocess.run(
            [sys.executable, "-c", CLIENT.format(change=change), host.address],
            env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        assert output.strip() == (
            f"this host is Teal {teal.__version__} (protocol {wire.PROTOCOL}, ABI {_core.ABI_VERSION}), "
            f"the client is Teal 9.9.9 (protocol {protocol}, ABI {abi}); run the same Teal on both sides"
        )
        assert float(identity(np.float64(3))[0].numpy()) == 3


def test_region_of_another_build() -> None:
    """What reaches past the handshake is refused by the region's own header."""
    import mmap
    import os
    import struct

    fd, size, _ = _core.make_region(1 << 16, 0, "small")
    with open(fd, "r+b", closefd=False) as file, mmap.mmap(file.fileno(), size) as memory:
        memory[8:12] = struct.pack("<I", 79)
    with pytest.raises(teal.VersionMismatch, match=rf"made by ABI 79, this process speaks ABI {_core.ABI_VERSION}"):
        _core.spilled_tensors(fd, [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(fd)
