"""Tables on standard output, for people and for files; summaries of test episodes as their rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean, stdev

from tmrl_like.types import EpisodeStats

SUMMARY_COLUMNS = ["", "episodes", "return, mean ± std", "terminated", "steps, mean"]


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, with the first column aligned left and the others right."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, title_style="bold"
    )
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 500, highlight=False).print(
        table
    )


def summary_row(name: str, episodes: Sequence[EpisodeStats]) -> list[str]:
    """Return the row of a policy's episodes for `SUMMARY_COLUMNS`."""
    mean, std = mean_and_std([e.return_ for e in episodes])
    share = sum(e.terminated for e in episodes) / len(episodes)
    steps = sum(e.steps for e in episodes) / len(episodes)
    spread = f" ± {std:.3f}" if len(episodes) > 1 else ""
    return [name, str(len(episodes)), f"{mean:.3f}{spread}", f"{share:.0%}", f"{steps:.1f}"]


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation (0 for a single value)."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0
