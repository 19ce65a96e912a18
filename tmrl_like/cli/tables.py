"""Tables on standard output, for people and for files; summaries of test episodes as their rows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from tmrl_like.types import EpisodeStats

SUMMARY_COLUMNS = ["", "episodes", "return, mean ± std", "terminated", "steps, mean"]


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, with the first column aligned left and the others right. No cell is cut: in a
    narrow terminal, lines wrap.
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    print(title)
    for first, *others in (columns, ["─" * width for width in widths], *rows):
        print("", first.ljust(widths[0]), *map(str.rjust, others, widths[1:]), sep="  ")


def summary_row(name: str, episodes: Sequence[EpisodeStats]) -> list[str]:
    """Return the row of a policy's episodes for `SUMMARY_COLUMNS`."""
    mean, std = mean_and_std(episodes)
    share = sum(e.terminated for e in episodes) / len(episodes)
    steps = sum(e.steps for e in episodes) / len(episodes)
    spread = f" ± {std:.3f}" if len(episodes) > 1 else ""
    return [name, str(len(episodes)), f"{mean:.3f}{spread}", f"{share:.0%}", f"{steps:.1f}"]


def mean_and_std(episodes: Sequence[EpisodeStats]) -> tuple[float, float]:
    """Return mean and sample standard deviation of the returns (0 for a single one)."""
    returns = [episode.return_ for episode in episodes]
    return fmean(returns), stdev(returns) if len(returns) > 1 else 0.0
