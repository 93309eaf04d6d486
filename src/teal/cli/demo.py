"""`teal demo`: search anyone's text by meaning from two processes at once, and see where the time went.

Everything that needs the extra packages is imported inside the command, so that `teal --help` stays quick and a missing
package is one line and not a traceback.
"""

from __future__ import annotations

import json
import sys
from io import TextIOWrapper

import click

_QUESTION = "What happens to a request when the worker that runs it crashes?"


@click.command(
    name="demo",
    short_help="Search a text by meaning from two processes at once.",
    epilog='Example: teal demo --text notes/ --text book.txt --ask "Who pays for the repair?" --top 3',
)
@click.option(
    "--text",
    "text",
    multiple=True,
    metavar="FILE_OR_DIR",
    help="Text or markdown to search: a file, a folder, - for standard input; may be repeated [default: Teal's docs]",
)
@click.option("--ask", default=_QUESTION, show_default=True, metavar="QUESTION", help="What to look for.")
@click.option("--top", default=5, show_default=True, type=click.IntRange(1, 100), help="How many passages to show.")
@click.option(
    "--passages",
    default=1000,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Search at most so many passages (about 80 a second).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def command(text: tuple[str, ...], ask: str, top: int, passages: int, as_json: bool) -> None:
    """Load a sentence-embedding model once, let two separate client processes search a text with it at the same time,
    and show the best passages and where the time went, beside the same calls in-process and over plain HTTP.

    Exit status 0 when every way gave the same answers, 1 otherwise or when something failed.
    """
    from teal.errors import TealError

    try:
        same = _run(text, ask, top, passages, as_json)
    except (TealError, MemoryError) as error:
        raise click.ClickException(str(error) or type(error).__name__) from None
    if not same:
        sys.exit(1)


def _run(text: tuple[str, ...], ask: str, top: int, passages: int, as_json: bool) -> bool:
    from teal.demo.extras import require

    require()
    from rich.console import Console

    from teal.demo import report
    from teal.demo.outcome import Question
    from teal.demo.progress import Show
    from teal.demo.run import default_text, run

    question = Question(ask=ask, text=text or default_text(), top=top, passages=passages)
    with Show(quiet=as_json) as show:
        outcome = run(question, show)
    if as_json:
        click.echo(json.dumps(report.as_json(outcome)))
    else:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without the letters of the text is no reason to fail
        report.draw(outcome, Console())
    return outcome.same
