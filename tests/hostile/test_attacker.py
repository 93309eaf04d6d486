"""The attacker can do what an honest client does: else its attacks would prove nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from attacker import MAGIC, Attacker
from crash_host import CrashHost

import teal


def test_honest_call(hosts: Callable[..., CrashHost]) -> None:
    host = hosts()
    with teal.connect(host.address) as attached, Attacker(host.address) as attacker:
        attached.load("other", "builtin:sum")
        attached.load("identity", "builtin:identity")
        attacker.enter()
        body, _ = attacker.ask("lookup", name="identity")
        memory = attacker.regions[attacker.region]
        memory[8192:8224] = struct.pack("<4d", 1.5, 2.5, 3.5, 4.5)
        attacker.describe(4096, [attacker.tensor(8192)], [attacker.tensor(12288)])
        assert struct.unpack_from("<I", memory, 4096)[0] == MAGIC
        for slot in range(3):
            memory[12288:12320] = bytes(32)
            assert attacker.call(body["index"], slot=slot, offset=4096) == (4, 0)
            assert struct.unpack_from("<4d", memory, 12288) == (1.5, 2.5, 3.5, 4.5)


def test_what_is_wrong_is_said(hosts: Callable[..., CrashHost]) -> None:
    host = hosts()
    with Attacker(host.address) as attacker:
        with pytest.raises(RuntimeError, match="InvalidArgument: the first message must be hello"):
            attacker.ask("list_models")
        attacker.enter()
        with pytest.raises(RuntimeError, match="NotFound: session 77 with pool 'default': not one of this connection"):
            attacker.ask("make_region", session=77, nbytes=4096)
        with pytest.raises(RuntimeError, match=r"message not understood: .*at `\$.body.nbytes`"):
            attacker.ask("make_region", session=0, nbytes="many")
