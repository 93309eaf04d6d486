"""What the `teal duck` commands share: how a duck is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from teal.duck.duck import Duck

_Command = TypeVar("_Command", bound=Callable[..., Any])


def duck_options(command: _Command) -> _Command:
    """``--duck ADDRESS``, ``--key-file FILE`` and ``--tcp`` of every command that talks to a duck."""
    command = click.option("--tcp", is_flag=True, help="Over TCP instead of UDP, to a duck elsewhere.")(command)
    command = click.option("--key-file", metavar="FILE", help="Its key, as `teal duck key` made it.")(command)
    return click.option(
        "--duck",
        metavar="ADDRESS",
        help="The duck: a name given to `teal duck serve --name`, or HOST:PORT [default: $TEAL_DUCK, or this user's]",
    )(command)


def reach(duck: str | None, key_file: str | None, tcp: bool) -> Duck:
    """The duck that ``--duck`` means. Raises NotFound, InvalidArgument, VersionMismatch."""
    from teal.duck.duck import Duck

    return Duck(duck, key_file=key_file, tcp=tcp)
