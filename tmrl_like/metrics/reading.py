"""Reads back what a trainer has written to its metrics.jsonl."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

Record = dict[str, Any]
"""A flat dictionary with a "kind" ("round", "episode" or "warm_up"); docs/metrics.md describes its
contents.
"""
EPOCH, WARM_UP = "epoch ", "waiting for samples"
"""How the lines begin that show a trainer's progress: of a round, of a warm-up."""


def numbers_of(record: Record) -> dict[str, float]:
    """Return the numbers of a record, without bools."""
    return {
        k: v for k, v in record.items() if isinstance(v, int | float) and not isinstance(v, bool)
    }


def return_of(record: Record) -> float | None:
    """Return the return of an episode; None for other records, and for an episode that a fault cut
    short, which says nothing about the policy.
    """
    if record.get("kind") != "episode" or record.get("fault"):
        return None
    return numbers_of(record).get("return")


def read_records(path: str | Path, last_bytes: float = math.inf) -> Iterator[Record]:
    """Yield the records of a file, or of its last bytes, oldest first; none if there is no file.

    An unfinished last line is left out. Lines that hold no record are skipped.
    """
    with contextlib.suppress(FileNotFoundError), Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size - int(min(last_bytes, size)))
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                record = msgspec.json.decode(line, type=Record)
            except msgspec.DecodeError:
                continue
            yield record
