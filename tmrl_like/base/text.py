"""Text for people: one line, the nearest word, numbers with their units."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from tmrl_like.base.gone import GONE

CONTROLS = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
"""Line ends, escapes and marks of writing direction, as in a regular expression's brackets."""

_control = re.compile(f"[{CONTROLS}]")


def one_line(value: Any, at_most: int | None = None) -> str:
    """The value as text without line ends and other control characters, cut after `at_most`
    characters.

    Where there are any, each run of white space becomes one space, and the others `?`. An exception
    stands behind its type.
    """
    text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)
    return (_control.sub("?", " ".join(text.split())) if _control.search(text) else text)[:at_most]


def nearest(word: Any, known: Iterable[str]) -> str:
    """The known word that is most like `word`; empty where none is."""
    return next(iter(difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.55)), "")


def suggestion(word: Any, known: Iterable[str]) -> str:
    """Finish a sentence about an unknown word: what serves in its place, the nearest known one, or
    all of them.
    """
    if str(word) in GONE:
        return f"an earlier version had it: {GONE[str(word)]}"
    known = list(known)
    if near := nearest(word, known):
        return f"did you mean {near}?"
    return f"known are {', '.join(known)}" if known else "there are none"


def counted(number: int, what: str) -> str:
    """A number with its noun: "1 step", "2,000 steps"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A short time: "35 ms", "1.5 s"."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def clock(seconds: float) -> str:
    """A long one: 1:02:03 or 2:03."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def name_of(target: Any) -> str:
    """What a class or function is called; anything else as its `repr`."""
    return (
        getattr(target, "__qualname__", None)
        or getattr(target, "__name__", None)
        or one_line(repr(target), 200)
    )
