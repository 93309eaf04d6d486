"""Two network namespaces with a cable (veth) between them: as near to two machines as one can come.

Theory of operation. `measured` runs this module in a child process, which makes the namespaces, measures in them
(core/bench enters them for the moment in which it makes its sockets) and removes them again. Root makes them with
ip(8); others in a user namespace of their own (unshare(1)), where the system lets them. Where it does not, NoCable says
why. The cable carries packets of 1,500 bytes, as Ethernet does; the kernel hands longer ones over whole (GSO).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from array import array
from types import TracebackType
from typing import Any, Self

from teal import _core
from teal.bench.lanes import LaneError, decode
from teal.bench.rivals.lane import encode
from teal.errors import TealError

from .yard import Yard

NETWORK = "10.231.78"
DUCK = f"{NETWORK}.1"
_SECONDS = 300.0
_ALONE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--"]


class NoCable(LaneError):
    """It cannot be made here; the message says why."""


def run(*words: str) -> None:
    """Raises NoCable with what the command said."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    except OSError as error:
        raise NoCable(f"{words[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise NoCable(f"`{' '.join(words)}`: {done.stderr.strip() or f'status {done.returncode}'}")


class Cable:
    """A context manager. ``near``, ``far``: files of the namespaces. The duck is in the far one, at address DUCK."""

    def __init__(self) -> None:
        self._near, self._far = (f"teal-bench-{os.getpid()}-{end}" for end in ("near", "far"))
        self.near, self.far = f"/run/netns/{self._near}", f"/run/netns/{self._far}"

    def __enter__(self) -> Self:
        """Raises NoCable."""
        near, far = self._near, self._far
        try:
            run("ip", "netns", "add", near)
            run("ip", "netns", "add", far)
            run("ip", "-n", far, "link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", near)
            run("ip", "-n", far, "addr", "add", f"{DUCK}/24", "dev", "cable0")
            run("ip", "-n", near, "addr", "add", f"{NETWORK}.2/24", "dev", "cable1")
            run("ip", "-n", far, "link", "set", "cable0", "up")
            run("ip", "-n", near, "link", "set", "cable1", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        for name in (self._near, self._far):
            if os.path.exists(f"/run/netns/{name}"):
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=60)


def measured(what: str, **arguments: Any) -> dict[str, list[array[int]]]:
    """Over a cable, in a child. what: "echo" (ns, an array a block) or "blob" (bytes a second). Raises NoCable."""
    if shutil.which("ip") is None:
        raise NoCable("there is no ip(8): install iproute2")
    alone = [] if os.geteuid() == 0 else _ALONE
    if alone and shutil.which(alone[0]) is None:
        raise NoCable("neither root nor unshare(1) is here, to make network namespaces")
    order = {"what": what, "alone": bool(alone)} | arguments
    command = [*alone, sys.executable, "-P", "-m", "teal.bench.duck.cable", json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise NoCable(said[-1] if said else f"status {done.returncode}")
    return {name: [decode(block) for block in blocks] for name, blocks in json.loads(done.stdout).items()}


def echo(cable: Cable, program: str, blocks: int, calls: int, nbytes: int, cores: list[int]) -> dict[str, list[str]]:
    """A program's box called directly, and through the duck's loop, in blocks. cores: the client's and the box's."""
    found: dict[str, list[str]] = {
        name: [] for name in ("bare", "call, sealed", "bare, loop", "call by the loop, sealed")
    }
    client, box = cores
    place = {"near": cable.near, "far": cable.far, "host": DUCK}
    with Yard(program) as yard:
        for _ in range(blocks):
            direct = yard.direct_times(calls, nbytes, client, box, **place)
            loop = _core.measure_duck_echo(calls=calls, bytes=nbytes, client_core=client, duck_core=box, **place)
            for name, times in zip(found, (direct.bare, direct.sealed, loop.bare, loop.sealed), strict=True):
                found[name].append(encode(array("q", times)))
    return found


def blob(cable: Cable, **arguments: Any) -> dict[str, list[str]]:
    """measure_duck_blob(), one block."""
    rates = _core.measure_duck_blob(near=cable.near, far=cable.far, host=DUCK, **arguments)
    rows = {
        "bare UDP": rates.bare_udp,
        "bare TCP": rates.bare_tcp,
        "UDP, sealed": rates.udp_sealed.there,
        "TCP, sealed": rates.tcp_sealed.there,
    }
    return {name: [encode(array("q", [int(rate) for rate in each]))] for name, each in rows.items()}


def main() -> None:
    """In the child."""
    order = json.loads(sys.argv[1])
    try:
        if order.pop("alone"):  # in a mount namespace of its own
            run("mount", "-t", "tmpfs", "tmpfs", "/run")  # ip(8) keeps its names there
        with Cable() as cable:
            found = echo(cable, **order) if order.pop("what") == "echo" else blob(cable, **order)
    except (TealError, LaneError, OSError) as error:
        sys.exit(str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
