"""`teal duck cc`: compiles programs that a duck can run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from teal.cli import draw, options


class _WithFlags(click.Command):
    """What follows ``--`` is the compiler's, and none of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            ctx.meta["flags"] = tuple(args[cut + 1 :])
            args = args[:cut]
        return super().parse_args(ctx, args)


@click.command("cc", cls=_WithFlags, short_help="Compile a program for ducks.", options_metavar="[OPTIONS]")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE... [-- FLAGS]")
@click.option("-o", "target", metavar="FILE", help="The program [default: the source's name, .elf].")
@click.option(
    "--abi",
    type=click.Choice(["teal", "duckinfo", "duckinfo32", "linux"]),
    default="teal",
    show_default=True,
    help="teal: resident, duck_call() of duck.h. duckinfo: duck_main() of duckinfo.h (duckinfo32: for i386). "
    "linux: main(), static.",
)
@click.option("-O", "level", default="2", show_default=True, metavar="LEVEL", help="0, 1, 2, 3, s, g or fast.")
@click.option("--libc", is_flag=True, help="Link a resident program with the C library (malloc and so on).")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context, sources: tuple[str, ...], target: str | None, abi: str, level: str, libc: bool, as_json: bool
) -> None:
    """Compile C, C++, Rust (.rs) or Zig (.zig) to a program that a duck runs.

    The compilers are $CC, $CXX, $RUSTC and $ZIG, or the ones that are installed. Code is made for x86-64-v2, which
    every duck has; programs choose wider vectors when they run. FLAGS go to the compiler; -l, -L and -Wl to the linker
    too.

    \b
    Examples:
      teal duck cc gemv.c -o gemv.elf -O 3
      teal duck cc prog.cpp -o prog.elf -- -std=c++20 -Wall
      teal duck cc prog.c -o prog.elf --libc -- -lm
      teal duck cc prog.rs -o prog.elf --json
    """
    from teal.duck import cc

    made = cc.compile_program(
        sources,
        target or str(Path(sources[0]).with_suffix(".elf")),
        abi=abi,
        level=level,
        libc=libc,
        flags=ctx.meta.get("flags", ()),
    )
    if as_json:
        draw.emit(asdict(made))
        return
    kind = "resident" if made.resident else abi
    click.echo(f"{made.path}: {made.nbytes} bytes, {made.machine}, {kind}, sha256 {made.sha256[:16]}")
