"""Ducks of the local network, by multicast DNS: opt-in on both sides (extra: discovery).

Theory of operation: a duck that listens and was told to (`teal duck serve --announce`) is announced as
``NAME._teal-duck._udp.local.`` with its cores, its ISA and its version; nothing of it is secret, and nobody gets in
without the key. What is found is what others say of themselves, and is shown, not believed.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from teal import _core
from teal._version import __version__
from teal.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from teal.duck.server import Server

SERVICE = "_teal-duck._udp.local."
_MOST_FOUND = 1000


def _zeroconf() -> Any:
    try:
        import zeroconf
    except ImportError:
        raise NotFound("the package zeroconf is not installed: pip install 'teal-runtime[discovery]'") from None
    return zeroconf


class Announcement:
    """A duck is announced until ``close``. Raises NotFound, InvalidArgument: it does not listen."""

    def __init__(self, server: Server) -> None:
        zeroconf = _zeroconf()
        if server.listening is None:
            raise InvalidArgument("a duck that listens for nobody cannot be announced; give --listen too")
        host, _, port = server.listening.rpartition(":")
        facts = {"cores": str(len(os.sched_getaffinity(0))), "isa": _core.isa(), "version": __version__}
        name = f"{server.name}-{socket.gethostname()}"[:63]
        self._info = zeroconf.ServiceInfo(
            SERVICE, f"{name}.{SERVICE}", addresses=_addresses(host.strip("[]")), port=int(port), properties=facts
        )
        self._zeroconf = zeroconf.Zeroconf()
        self._zeroconf.register_service(self._info, allow_name_change=True)

    def close(self) -> None:
        self._zeroconf.unregister_service(self._info)
        self._zeroconf.close()


def _addresses(host: str) -> list[bytes]:
    given = ipaddress.ip_address(host)
    if not given.is_unspecified:
        return [given.packed]
    found = {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it asks for the route
            found.add(probe.getsockname()[0])
        except OSError:
            pass
    return [ipaddress.ip_address(address).packed for address in sorted(map(str, found))]


def find(seconds: float) -> list[dict[str, Any]]:
    """name, address (HOST:PORT), cores, isa, version of each duck that answers in that time. Raises NotFound."""
    zeroconf = _zeroconf()
    guard = threading.Lock()
    found: dict[str, dict[str, Any]] = {}

    class Listener:  # what a zeroconf.ServiceListener has
        def add_service(self, zc: Any, kind: str, name: str) -> None:
            info = zc.get_service_info(kind, name, timeout=int(seconds * 1000))
            if info is None or len(found) >= _MOST_FOUND:
                return
            texts = {
                key.decode("utf-8", "replace"): (value or b"").decode("utf-8", "replace")[:80]
                for key, value in info.properties.items()
            }
            addresses = [f"{address}:{info.port}" for address in info.parsed_addresses()]
            with guard:
                found[name] = {
                    "name": name.removesuffix(f".{kind}"),
                    "address": addresses[0] if addresses else "",
                    "addresses": addresses,
                    **{key: texts.get(key, "") for key in ("cores", "isa", "version")},
                }

        def update_service(self, zc: Any, kind: str, name: str) -> None:
            self.add_service(zc, kind, name)

        def remove_service(self, zc: Any, kind: str, name: str) -> None:
            with guard:
                found.pop(name, None)

    browsing = zeroconf.Zeroconf()
    try:
        zeroconf.ServiceBrowser(browsing, SERVICE, Listener())
        threading.Event().wait(seconds)
    finally:
        browsing.close()
    return [found[name] for name in sorted(found)]
