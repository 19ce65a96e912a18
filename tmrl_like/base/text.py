"""Text for people: single lines, the closest word, numbers with units."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from tmrl_like.base.gone import GONE

CONTROLS = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff"
"""Line ends, escapes, marks of writing direction, and what has no UTF-8 form, for the brackets of a
regular expression.
"""

_control = re.compile(f"[{CONTROLS}]")


def one_line(value: object, at_most: int | None = None) -> str:
    """Return a value as text without control characters such as line ends, of at most `at_most`
    characters.

    If there are control characters, each run of white space becomes one space, and each remaining
    one a `?`. The text of an exception begins with its type.
    """
    text = str(value)
    if isinstance(value, BaseException):
        text = f"{type(value).__name__}: {text}" if text else type(value).__name__
    return (_control.sub("?", " ".join(text.split())) if _control.search(text) else text)[:at_most]


def nearest(word: object, known: Iterable[str]) -> str:
    """Return the known word closest to `word`, or an empty string if none is close."""
    return next(iter(difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.55)), "")


def suggestion(word: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: its replacement, the closest known word,
    or all known words.
    """
    if str(word) in GONE:
        return f"an earlier version had it: {GONE[str(word)]}"
    known = list(known)
    if near := nearest(word, known):
        return f"did you mean {near}?"
    return f"known are {', '.join(known)}" if known else "there are none"


def counted(number: int, what: str) -> str:
    """Return a number with its noun: "1 step", "2,000 steps"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a short time: "35 ms", "1.5 s"."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def clock(seconds: float) -> str:
    """Format a long time: 1:02:03 or 2:03."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def name_of(target: object) -> str:
    """Return the name of a class or function, or the `repr` of anything else."""
    return (
        getattr(target, "__qualname__", None)
        or getattr(target, "__name__", None)
        or one_line(repr(target), 200)
    )
