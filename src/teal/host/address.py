"""Where a host listens: addresses of UNIX sockets, and who may connect.

Theory of operation: the default address of a user is the abstract name ``@teal/<uid>/<name>``. Abstract names live in
the
kernel and vanish with their process, so a ``kill -9`` leaves no file behind and never blocks a restart. Anybody on the
machine may bind such a name, so both ends ask the kernel who the other is (SO_PEERCRED): the host serves its own user
(and whom it
was told to allow), and a client talks only to its own user's host or root's, unless an address was given by hand.
A path works too (``/run/…/teal.sock``), for containers that share a folder and not a network namespace.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import struct
import time
from pathlib import Path

from teal.errors import Busy, InvalidArgument, NotFound, PeerDied

ENVIRONMENT = "TEAL_HOST"
_LOOK = 2e-3  # seconds; arbitrary
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def default_address(name: str = "default") -> str:
    """``@teal/<uid>/<name>``, or what TEAL_HOST says. Raises InvalidArgument for a name that could be read two ways."""
    if name == "default" and (given := os.environ.get(ENVIRONMENT)):
        return given
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"host name {name[:80]!r}: expected 1 to 64 letters, digits, '.', '_' or '-'")
    return f"@teal/{os.getuid()}/{name}"


def socket_address(address: str) -> str | bytes:
    """What socket.bind() takes. Raises InvalidArgument when it is too long or holds a NUL."""
    raw = address.encode("utf-8", "surrogateescape")
    if not raw or b"\0" in raw or len(raw) > 100:
        raise InvalidArgument(f"address {address[:120]!r}: expected 1 to 100 bytes without NUL")
    return b"\0" + raw[1:] if raw.startswith(b"@") else address


def peer(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other end, from the kernel."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


def _remove_stale(address: str) -> None:
    # A path (unlike an abstract name) outlives its process. Only a socket that nobody listens on is removed.
    try:
        if not stat.S_ISSOCK(Path(address).lstat().st_mode):
            raise InvalidArgument(f"{address}: exists and is not a socket; choose another path")
    except FileNotFoundError:
        return
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    probe.settimeout(1.0)  # a stopped process with a full backlog takes no connection
    try:
        probe.connect(socket_address(address))
    except ConnectionRefusedError:
        Path(address).unlink(missing_ok=True)
    except OSError:
        pass
    finally:
        probe.close()


def listen(address: str, *, others: bool = False) -> socket.socket:
    """A listening socket. Raises Busy with the pid of who listens there already.

    ``others``: users other than ours may connect; whoever accepts asks for their uid.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if not address.startswith("@"):
            _remove_stale(address)
        sock.bind(socket_address(address))
        if not address.startswith("@"):
            os.chmod(address, 0o666 if others else 0o600)
        sock.listen(128)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno != errno.EADDRINUSE:
            raise InvalidArgument(f"cannot listen at {address}: {error.strerror}") from error
        holder = _who_listens(address)
        raise Busy(
            f"a host listens at {address} already{holder}; use it with teal.connect(), or give --name another name"
        ) from None
    except BaseException:
        sock.close()
        raise
    return sock


def _who_listens(address: str) -> str:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    probe.settimeout(1.0)  # a stopped process with a full backlog takes no connection
    try:
        probe.connect(socket_address(address))
        pid, uid = peer(probe)
        return f" (process {pid} of user {uid})"
    except OSError:
        return ""
    finally:
        probe.close()


def _reach(sock: socket.socket, address: str | bytes, timeout: float) -> None:
    """Connects. A socket with a timeout does not wait while the backlog is full, and nothing tells: we look again."""
    until = time.monotonic() + timeout
    while True:
        try:
            sock.connect(address)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError from None
            time.sleep(_LOOK)


def connect(address: str | None, timeout: float = 5.0) -> tuple[socket.socket, str]:
    """A connected socket and the address used. Raises NotFound when no host listens there, or a stranger's does."""
    chosen = default_address() if address is None else address
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(timeout)
    try:
        _reach(sock, socket_address(chosen), timeout)
    except TimeoutError:
        sock.close()
        raise PeerDied("host", f"something listens at {chosen} and took no connection within {timeout} s") from None
    except OSError as error:
        sock.close()
        raise NotFound(
            f"no host listens at {chosen} ({error.strerror}); start one with `teal serve`, or embed a teal.Host()"
        ) from None
    _, uid = peer(sock)
    ours = chosen.startswith(f"@teal/{os.getuid()}/")  # anybody may bind that name; only we and root may mean it
    if (address is None or ours) and uid not in (os.getuid(), 0):
        sock.close()
        advice = "start yours under another --name" if ours else "give its address by hand if you trust it"
        raise NotFound(f"the host at {chosen} belongs to user {uid}, not to you; {advice}")
    sock.settimeout(None)
    return sock, chosen
