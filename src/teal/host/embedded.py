"""A host inside this process: a Daemon on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from typing import Any

from teal.host.daemon import Daemon


class Embedded:
    """It serves once this is made. Raises what keeps the Daemon from starting."""

    def __init__(self, daemon_arguments: dict[str, Any]) -> None:
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._daemon: Daemon | None = None
        self._arguments = daemon_arguments
        self._pid = os.getpid()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="teal-host", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error
        _running.add(self)

    def forget(self) -> None:
        """In a forked child."""
        if self._daemon is not None:
            self._daemon.forget()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            self._daemon = Daemon(**self._arguments)
            await self._daemon.start()
        except BaseException as error:
            self._error = error
            self._started.set()
            return
        self._started.set()
        await self._daemon.stopped.wait()

    def stop(self, *, drain: bool, timeout: float) -> None:
        if self._pid != os.getpid() or self._loop is None or self._daemon is None:
            return  # a forked child does not stop its parent's host
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(self._daemon.stop(drain=drain, timeout=timeout), self._loop)
            self._thread.join()


_running: weakref.WeakSet[Embedded] = weakref.WeakSet()


def _forget_in_child() -> None:
    for thread in list(_running):
        thread.forget()


os.register_at_fork(after_in_child=_forget_in_child)
