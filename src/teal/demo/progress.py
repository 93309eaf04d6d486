"""Progress on standard error: live bars on a terminal, a line now and then anywhere else, nothing when quiet."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

_SHARES = 4  # off a terminal, each part says so many times how far it is


class Show:
    """The run as it goes; a context manager. `part` opens a bar, `advance` moves it, `step` prints one line."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._live = self._console.is_terminal and not quiet
        self._bars = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._live,
            refresh_per_second=5,  # drawing takes processor time from what is being shown
        )
        self._parts: dict[str, tuple[TaskID, int, int]] = {}

    def step(self, text: str) -> None:
        """Say what happens now."""
        self._bars.console.print(Text(text, style="dim" if self._live else ""))

    def part(self, name: str, total: int) -> None:
        """Open a bar for `total` pieces of work."""
        self._parts[name] = (self._bars.add_task(name, total=total), 0, total)

    def advance(self, name: str, pieces: int = 1) -> None:
        """Move a bar."""
        task, before, total = self._parts[name]
        done = before + pieces
        self._parts[name] = (task, done, total)
        self._bars.update(task, completed=done)
        if not self._live and total and before * _SHARES // total < done * _SHARES // total:
            self.step(f"{name}: {done} of {total}")

    def __enter__(self) -> Show:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()
