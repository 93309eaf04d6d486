"""The command ``teal``: one file per command, imported only when it is used (lazy.py)."""

from __future__ import annotations

import errno
import os
import sys

import click

from teal._version import __version__

from .lazy import Lazy

_COMMANDS = {
    "serve": "serve",
    "load": "load",
    "unload": "unload",
    "rollback": "rollback",
    "ls": "ls",
    "verify": "verify",
    "infer": "infer",
    "stat": "stat",
    "agent": "agent",
    "trace": "trace",
    "sim": "sim",
    "stop": "stop",
    "duck": "duck",
    "judge": "judge",
    "tune": "tune",
    "doctor": "doctor",
    "bench": "bench",
    "link": "link",
    "cluster": "cluster",
    "demo": "demo",
    "config": "config",
    "version": "version",
}


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@click.version_option(__version__, prog_name="teal", message="%(prog)s %(version)s")
@click.group(
    cls=Lazy, files=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
def group() -> None:
    """Resident models and native programs, called through shared memory at the cost of their maths.

    Example: teal serve &  teal load minilm model.onnx  &&  teal stat
    """


def open_standard_streams() -> None:
    """Those that we were started without lead nowhere: else a socket would be stdout, and be printed on."""
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, fd)
            os.set_inheritable(fd, True)  # by workers
            if nowhere != fd:
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "r" if fd == 0 else "w", closefd=False))  # noqa: SIM115


def main() -> None:
    """Entry point. Teal's own errors are one line on stderr and exit status 1; usage errors are click's (2)."""
    from teal.errors import TealError

    open_standard_streams()
    try:
        group(prog_name="teal")
    except TealError as error:
        click.echo(f"teal: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        click.echo(f"teal: output cannot be written: {error.strerror}", err=True)
        sys.stdout = None  # what is left in it has nowhere to go
        sys.exit(1)
