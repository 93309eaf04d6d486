"""`teal duck run`: one program, once, with its input from stdin and its answer to stdout.

Theory of operation: a resident program (`teal duck cc`) gets stdin as the arguments of one call, and the answer is what
it left at the start of its output buffer. An ordinary static program gets stdin as its standard input, in a box of its
own. Without ``--duck``, and when this user has none running, a duck is made for this one run.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from teal.cli import draw, duck_options, options
from teal.cli.judge import ended

if TYPE_CHECKING:
    from teal.duck.duck import Duck

ORDINARY_MEMORY = 256 << 20
MOST_OUTPUT = 32 << 20  # that travels with a record


@click.command("run", short_help="Run a program once: stdin to stdout.")
@click.argument("program", type=click.Path(exists=True, dir_okay=False))
@click.option("--cores", default=1, show_default=True, type=click.IntRange(1, 64), metavar="N", help="That enter it.")
@click.option("--ib", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Its input buffer.")
@click.option("--ob", default="1M", show_default=True, callback=options.nbytes, metavar="SIZE", help="Output buffer.")
@click.option("--memory", callback=options.nbytes, metavar="SIZE", help="[default: 256M of an ordinary program]")
@click.option("--timeout", default="60s", show_default=True, metavar="TIME", help="Then it is ended.")
@click.option(
    "--calls", default=1, show_default=True, type=click.IntRange(1), metavar="N", help="So often; last answer."
)
@duck_options.duck_options
@options.json_option
def command(
    program: str,
    cores: int,
    ib: str | None,
    ob: int,
    memory: int | None,
    timeout: str,
    calls: int,
    duck: str | None,
    key_file: str | None,
    tcp: bool,
    as_json: bool,
) -> None:
    """Run PROGRAM once: what comes in on stdin are its arguments, its answer goes to stdout.

    An ordinary static program reads stdin and writes stdout itself, and the exit status is its own.

    \b
    Examples:
      echo world | teal duck run hello.elf
      teal duck run prog.elf --memory 1G --timeout 10s < in > out
      teal duck run gemv.elf --ib weights.bin --cores 2 < x.bin > y.bin
      teal duck run hello.elf --duck 10.0.0.2:7311 --key-file duck.key --calls 1000 --json < /dev/null
    """
    resident = _resident(program)
    if not resident:
        _refuse_for_resident(program)
    given = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    with ExitStack() as stack:
        reached = stack.enter_context(_reached(stack, duck, key_file, tcp))
        if not resident:
            _judge(reached, program, given, timeout, memory or ORDINARY_MEMORY, as_json)
            return
        limit: dict[str, Any] = {} if memory is None else {"memory": memory}
        session = stack.enter_context(
            reached.open(program, cores=cores, ob=ob, args=max(4096, len(given)), timeout=timeout, **limit)
        )
        if ib is not None:
            session.map(ib)
        import numpy as np

        times = []
        call = session.prepare(len(given))
        call.args.numpy()[:] = np.frombuffer(given, np.uint8)
        from time import perf_counter

        for _ in range(calls):
            start = perf_counter()
            answer = call()
            times.append(perf_counter() - start)
        data = answer.numpy().tobytes()
        micros = sorted(times)[len(times) // 2] * 1e6
        if as_json:
            shown = {"text": data.decode()} if _is_text(data) else {"hex": data[:4096].hex()}
            draw.emit({"bytes": len(data), **shown, "calls": calls, "p50_us": micros, "duck": reached.address})
            return
    sys.stdout.buffer.write(data)
    if calls > 1:
        click.echo(f"{calls} calls, p50 {draw.micros(micros)}", err=True)


def _reached(stack: ExitStack, duck: str | None, key_file: str | None, tcp: bool) -> Duck:
    from teal.duck.server import Server
    from teal.errors import NotFound

    try:
        return duck_options.reach(duck, key_file, tcp)
    except NotFound:
        if duck is not None:
            raise
    return stack.enter_context(Server(None)).connect()


def _resident(program: str) -> bool:
    from teal import _core

    with open(program, "rb") as file:
        return bool(_core.read_elf(file.read(), program).facts["resident"])


def _is_text(data: bytes) -> bool:
    try:
        return data.decode().isprintable() or b"\0" not in data
    except UnicodeDecodeError:
        return False


def _refuse_for_resident(program: str) -> None:
    context = click.get_current_context()
    for name in ("cores", "ib", "ob", "calls"):
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None):
            raise click.UsageError(
                f"--{name} is for resident programs (duck_call() of duck.h); {program} is an ordinary one: it reads "
                "stdin, and runs once"
            )


def _judge(duck: Duck, program: str, given: bytes, timeout: str, memory: int, as_json: bool) -> None:
    record = duck.judge(program, stdin=given, time=timeout, memory=memory, output=MOST_OUTPUT)
    out, err = record.pop("stdout"), record.pop("stderr")
    if as_json:
        draw.emit({**record, "stdout": out.decode("utf-8", "replace"), "stderr": err.decode("utf-8", "replace")})
    else:
        sys.stdout.buffer.write(out)
        sys.stderr.buffer.write(err)
    cut = [name for name in ("stdout", "stderr") if record[f"{name}-truncated"]]
    for name in cut:
        click.echo(f"teal: {name} was cut after {record[f'{name}-size']} bytes", err=True)
    if record["status"] != "Run Finished":
        click.echo(f"teal: {ended(record)}", err=True)
        sys.exit(1)
    sys.exit(1 if cut else record["return-code"] & 0xFF)
