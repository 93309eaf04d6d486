"""`teal config`: where liblaika lies, for compilers and build systems."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from teal.cli import draw, options


def root() -> Path:
    """The folder with ``include/`` and ``lib/``. Raises NotFound when this Teal was built without liblaika."""
    from teal import _core
    from teal.errors import NotFound

    folder = Path(_core.__file__).parent / "capi"
    library = folder / "lib" / "liblaika.so"
    if not library.exists():
        raise NotFound(f"{library}: this Teal was built without liblaika; build it with -DTEAL_CAPI=ON")
    return folder


def flags() -> dict[str, list[str]]:
    """What pkg-config would print, for machines without it."""
    folder = root()
    lib = str(folder / "lib")
    return {
        "cflags": [f"-I{folder / 'include'}"],
        "libs": [f"-L{lib}", f"-Wl,-rpath,{lib}", "-llaika"],
        "pkgconfig": [f"{lib}/pkgconfig"],
    }


@click.command("config", short_help="Where liblaika (the C library) lies.")
@click.option("--pkgconfig", is_flag=True, help="The folder for PKG_CONFIG_PATH.")
@click.option("--cflags", is_flag=True, help="Flags for the compiler, without pkg-config.")
@click.option("--libs", is_flag=True, help="Flags for the linker, without pkg-config.")
@options.json_option
def command(as_json: bool, **asked: bool) -> None:
    """Show where liblaika (the C library) lies. Without an option: all of it.

    \b
    Examples:
      export PKG_CONFIG_PATH=$(teal config --pkgconfig)
      cc program.c $(pkg-config --cflags --libs laika) -o program
      cc program.c $(teal config --cflags --libs) -o program
    """
    found = flags()
    if as_json:
        draw.emit(found)
    elif any(asked.values()):
        parts = [part for name, these in found.items() if asked[name] for part in these]
        click.echo(" ".join(shlex.quote(part) for part in parts))
    else:
        for name, parts in found.items():
            click.echo(f"{name:10} {' '.join(shlex.quote(part) for part in parts)}")
