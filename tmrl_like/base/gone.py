"""Names that earlier versions knew: options, flags, commands, classes; what serves in the place of each."""

from __future__ import annotations

GONE: dict[str, str] = {}
"""Of a name as a user writes it, one line that says what to use instead."""
