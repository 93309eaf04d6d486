"""The Ray actor that keeps one duck: starts it as a child, says where it listens, and ends with it.

Theory of operation: the duck is a process of its own (`teal duck serve`), so that neither takes the other with it by
accident. It dies with the actor (PDEATHSIG); when it dies by itself the actor exits, which makes Ray start the actor
anew, on this node or on another one, and with it a fresh duck. Nothing but plain values crosses between processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

# PDEATHSIG comes when the *thread* that made the child ends: one of Ray's own, which live as long as the actor.
_MAIN = "from teal.host.lifeline import die_with_host; die_with_host(); from teal.cli import main; main()"
_SOON = 5.0  # seconds: one that lived less than this is not started again at once


class Keeper:
    """One node's duck. Made by Ray from `cluster.up`; options are those of `teal duck serve`."""

    def __init__(self, name: str, options: list[str], port: int, key: str | None) -> None:
        import ray.util

        context = ray.get_runtime_context()
        self._node = str(context.get_node_id())
        self._restarted = bool(context.was_current_actor_reconstructed)
        self._host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._began = time.monotonic()
        self._address = ""
        self._error = ""
        self._ready = threading.Event()
        command = [sys.executable, "-c", _MAIN, "duck", "serve", "--json"]
        command += ["--name", name, "--listen", f"{self._host}:{port}", *options]
        descriptors: tuple[int, ...] = ()
        if key is not None:
            kept = os.memfd_create("duck-key", 0)  # a file that nobody else can open
            os.fchmod(kept, 0o600)
            os.write(kept, key.encode())
            command += ["--key-file", f"/proc/self/fd/{kept}"]
            descriptors = (kept,)
        self._child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=descriptors
        )
        for fd in descriptors:
            os.close(fd)
        threading.Thread(target=self._listen, name="duck-out", daemon=True).start()

    def _listen(self) -> None:
        """Reads what the duck prints; when it ends, so does the actor."""
        assert self._child.stdout is not None
        words: list[bytes] = []
        drain = threading.Thread(target=lambda: words.extend(self._child.stderr or ()), daemon=True)
        drain.start()
        for line in self._child.stdout:
            with contextlib.suppress(ValueError, TypeError):
                told = json.loads(line)
                if isinstance(told, dict) and isinstance(told.get("listening"), str):
                    self._address = told["listening"]
                    self._ready.set()
        status = self._child.wait()
        drain.join(1.0)
        self._error = f"exit status {status}: " + b"".join(words[-3:]).decode(errors="replace").strip()
        self._ready.set()
        lived = time.monotonic() - self._began
        if lived < _SOON:
            time.sleep(
                _SOON - lived
            )  # whoever asks hears meanwhile why; and Ray does not start it a hundred times a second
        os._exit(1)

    def facts(self, timeout: float = 30.0) -> dict[str, Any]:
        """node, address, pid of the duck; `error` instead of an address when it has ended."""
        self._ready.wait(timeout)
        return {
            "node": self._node,
            "host": self._host,
            "address": self._address if not self._error else "",
            "pid": self._child.pid,
            "restarted": self._restarted,
            "up_s": time.monotonic() - self._began,
            "error": self._error or ("" if self._address else f"not listening after {timeout:g} s"),
        }

    def stop(self) -> int:
        """Ends the duck in order: its sessions are closed. Returns its exit status."""
        self._child.send_signal(signal.SIGTERM)
        try:
            return self._child.wait(5.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()
