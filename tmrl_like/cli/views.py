"""The output of `run`: a live page on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, TypeAlias

from tmrl_like.cli.progress import Progress

_PLAIN_EVERY_S = 10.0


class PlainView:
    """Prints plain lines, for files and pipes."""

    def __init__(self, title: str) -> None:
        self._shown = ""
        self._shown_at = -_PLAIN_EVERY_S
        self._state = ""
        self._print(f"run {title}")

    def line(self, text: str) -> None:
        """Show one line of a part."""
        self._print(text)

    def show(self, state: str, progress: Progress) -> None:
        """Print a line every 10 s at most, and when `state` changes, which describes the current
        activity.
        """
        if state != self._state:
            self._state = state
            self._print(state)
        rows = "; ".join(f"{name} {value}" for name, value in progress.rows())
        has_begun = progress.last_round or progress.warm_up
        is_early = time.monotonic() - self._shown_at < _PLAIN_EVERY_S
        if not has_begun or rows == self._shown or is_early:
            return
        self._shown, self._shown_at = rows, time.monotonic()
        self._print(f"{progress.times()}: {rows}")

    def close(self) -> None:
        """Do nothing: plain lines need no cleaning up."""

    def _print(self, text: str) -> None:
        """Print a line, unless its reader has gone (`| tee` ends with Ctrl-C) or its disk is full:
        the run goes on.
        """
        try:
            print(text)
        except BrokenPipeError:
            sys.stdout = None  # print now does nothing
        except OSError:
            pass


class LiveView:
    """A page that refreshes itself, below the log lines."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.markup import escape

        self._title = escape(title)
        self._console = Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=False)
        self._live.start()

    def line(self, text: str) -> None:
        """Show one line of a part; a warning or an error is coloured."""
        from rich.text import Text

        style = ""
        if " WARNING " in text:
            style = "yellow"
        if " ERROR " in text or " CRITICAL" in text:
            style = "bold red"
        with contextlib.suppress(OSError):  # the terminal was closed
            if "\a" in text:
                self._console.bell()
            self._console.print(Text(text, style=style))

    def show(self, state: str, progress: Progress) -> None:
        """Update the page; `state` describes the current activity. Called several times a
        second.
        """
        self._live.update(self._page(state, progress))

    def close(self) -> None:
        """Stop refreshing, and leave the last page on the screen."""
        with contextlib.suppress(OSError):  # the terminal was closed
            self._live.stop()

    def _page(self, state: str, progress: Progress) -> Any:
        from rich.panel import Panel
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        for name, value in progress.rows():
            table.add_row(name, f"[bold]{value}[/bold]" if name == "test return" else value)
        return Panel(
            table,
            title=f"[bold]{self._title}[/bold] · {state}",
            subtitle=f"{progress.times()} · Ctrl-C ends everything",
            title_align="left",
            subtitle_align="left",
        )


View: TypeAlias = PlainView | LiveView


def make_view(title: str) -> View:
    """Return the view that fits standard output."""
    return LiveView(title) if sys.stdout.isatty() else PlainView(title)
