"""Tables on standard output, for people and for files."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; first column left, the others right."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 500, highlight=False).print(table)
