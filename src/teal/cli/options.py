"""What the commands share: how a host is named, ``--json``, durations and sizes as people type them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from teal.host.host import Host

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def host_option(command: _Command) -> _Command:
    """``--host ADDRESS`` of every command that talks to a host."""
    return click.option(
        "--host",
        metavar="ADDRESS",
        help="The host: a name given to `teal serve --name`, or an address [default: $TEAL_HOST, or this user's host]",
    )(command)


def json_option(command: _Command) -> _Command:
    """``--json``: nothing but JSON on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs, and nothing else.")(command)


def reach(host: str | None) -> Host:
    """The host that ``--host`` means. Raises NotFound, InvalidArgument, VersionMismatch."""
    from teal.host import address as addresses
    from teal.host.host import connect

    if host is not None and not host.startswith("@") and "/" not in host:
        host = addresses.default_address(host)
    return connect(host)


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Callback of options that take a duration such as 5ms."""
    from teal.errors import InvalidArgument
    from teal.host.duration import nanoseconds

    if value is None:
        return None
    try:
        return nanoseconds(value, "") / 1e9
    except InvalidArgument as error:
        raise click.BadParameter(str(error), context, parameter) from None


def nbytes(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of options that take a size such as 512M or 4GiB (powers of 1024)."""
    if value is None:
        return None
    try:
        return size(value)
    except click.BadParameter as error:
        raise click.BadParameter(error.message, context, parameter) from None


def size(text: str, hint: str | None = None) -> int:
    """Bytes of a size such as 512M or 4GiB. ``hint`` names the option in errors. Raises click.BadParameter."""
    match = _SIZE.fullmatch(text)
    if match is None or (count := int(float(match[1]) * (1 << _UNITS[match[2].upper()]))) < 1:
        raise click.BadParameter(f"{text!r}, expected a size such as 4096, 512M or 4G", param_hint=hint)
    return count


def pairs(values: tuple[str, ...], what: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a mapping. ``what`` names the option in errors. Raises click.BadParameter."""
    found: dict[str, str] = {}
    for text in values:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"{text[:80]!r}, expected NAME=VALUE", param_hint=what)
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=what)
        found[name] = value
    return found
