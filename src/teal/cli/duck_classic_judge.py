"""`teal duck classic judge`: one run over JudgeDuck-OS's own protocol, and its record."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from teal.cli import draw, options


@click.command("judge", short_help="Run a DuckInfo program once on a duck of the classic protocol.")
@click.argument("program", type=click.Path(exists=True, dir_okay=False))
@click.option("--host", required=True, metavar="HOST:PORT", help="Where it is, as in `teal duck serve --classic`.")
@click.option("--stdin", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Its input [default: this command's own, unless that is a terminal]")  # fmt: skip
@click.option("--ib", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Its input buffer.")
@click.option("--ob", callback=options.nbytes, metavar="SIZE", help="Its output buffer [default: none]")
@click.option("--ob-file", type=click.Path(dir_okay=False), metavar="FILE", help="Where the output buffer goes after.")
@click.option("--time", "limit", default="1s", show_default=True, metavar="TIME", help="CPU time.")
@click.option("--memory", default="256M", show_default=True, callback=options.nbytes, metavar="SIZE", help="Memory.")
@click.option("--output", default="1M", show_default=True, callback=options.nbytes, metavar="SIZE",
              help="Of stdout; what is beyond is cut off.")  # fmt: skip
@options.json_option
def command(
    program: str,
    host: str,
    stdin: str | None,
    ib: str | None,
    ob: int | None,
    ob_file: str | None,
    limit: str,
    memory: int,
    output: int,
    as_json: bool,
) -> None:
    """Run PROGRAM (teal duck cc --abi duckinfo) once, and print the record of 19 keys as the duck sent it.

    Program and inputs go through the duck's caches: what it has is not sent again. Exit status 0 when the run
    finished.

    \b
    Examples:
      teal duck classic judge prog.elf --host 127.0.0.1:9999 < in
      teal duck classic judge prog.elf --host 127.0.0.1:9999 --stdin in --ib weights --ob 1M --ob-file out --json
    """
    from teal.duck.classic.client import Client

    given = Path(stdin).read_bytes() if stdin else b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    with Client(host) as client:
        judged = client.judge(
            program,
            given,
            time=limit,
            memory=memory,
            stdout=output,
            ib=Path(ib).read_bytes() if ib else b"",
            ob=ob or 0,
        )
        sent = client.statistics()
    if ob_file:
        Path(ob_file).write_bytes(judged.ob)
    out, err = (text.decode("utf-8", "replace") for text in (judged.stdout, judged.stderr))
    if as_json:
        draw.emit({**judged.record, "stdout": out, "stderr": err, "cache-hits": judged.hits,
                   "uploaded-bytes": judged.uploaded, "client": sent})  # fmt: skip
    else:
        click.echo(draw.printable(": ".join(str(judged.record[k]) for k in ("status", "reason") if k in judged.record)))
        for name, value in judged.record.items():
            if name not in ("status", "reason"):
                click.echo(f"  {name:22} {value}")
        for name, text in (("stdout", out), ("stderr", err)):
            if text:
                click.echo(f"{name}:\n{text}", nl=not text.endswith("\n"))
    sys.exit(0 if judged.record["status"] == "Run Finished" else 1)
