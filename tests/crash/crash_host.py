"""A host in a process of its own, as `teal serve` runs one: to be watched, stopped and killed.

Run as a program it serves until it is told to stop: ``python crash_host.py '{"name": …, "workers": 2, …}'``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import watch

HERE = Path(__file__).parent


def unused_name() -> str:
    """A host name that no other test has."""
    return f"crash-{os.getpid()}-{secrets.token_hex(4)}"


class CrashHost:
    """Started at once, with what Daemon takes: name, workers, limits, repository, allowed_uids, idle, pools.

    ``environment``: for it and its workers. ``address``: listen there instead of at the name's own address.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        uid: int | None = None,
        **options: Any,
    ) -> None:
        self.name = name or unused_name()
        self.address: str = options.get("address", f"@teal/{os.getuid() if uid is None else uid}/{self.name}")
        paths = os.pathsep.join([str(HERE), *(path for path in sys.path if path)])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "crash_host.py"), json.dumps({**options, "address": self.address})],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
            cwd=cwd,
            user=uid,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the host {self.name} did not start: exit status {self.process.wait()}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self) -> list[int]:
        """Process numbers of its children that live."""
        return sorted(pid for pid in watch.children(self.pid) if watch.alive(pid))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Stops it whatever state it is in; it and its workers are gone afterwards."""
        workers = watch.children(self.pid)
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
                self.process.terminate()
            try:
                self.process.wait(watch.PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            watch.until(lambda pid=pid: not watch.alive(pid), f"the end of worker {pid} of host {self.name}")

    def __enter__(self) -> CrashHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def serve(options: dict[str, Any], ready: Any = None) -> None:
    """Serves until SIGTERM. ``ready()`` is called once it can take connections."""
    from teal.host.daemon import Daemon
    from teal.host.limits import Limits
    from teal.host.settings import daemon_arguments

    arguments = daemon_arguments(
        options["address"],
        workers=options.get("workers", 1),
        idle=options.get("idle_ns", 50_000) / 1e9,
        threads=1,
        cores=None,
        limits=Limits(**options.get("limits", {})),
        repository=options.get("repository"),
        pools=options.get("pools"),
        allowed_uids=options.get("allowed_uids", ()),
    )
    daemon = Daemon(**arguments)
    await daemon.start()
    loop = asyncio.get_running_loop()
    tasks = set()

    def stop() -> None:
        tasks.add(loop.create_task(daemon.stop(drain=False, timeout=0)))

    loop.add_signal_handler(signal.SIGTERM, stop)
    (ready or (lambda: print("ready", flush=True)))()
    await daemon.stopped.wait()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: it does not outlive its test
    asyncio.run(serve(json.loads(sys.argv[1])))
