"""What the page knows, in Prometheus' text format."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from tmrl_like.metrics.reading import Record, numbers_of
from tmrl_like.types import LATENESS_EDGES_S
from tmrl_like.wire.condition import FIGURES
from tmrl_like.wire.messages import Beat, Sight

Labelled: TypeAlias = tuple[str, float]
"""Labels; a value."""

NO_NUMBERS = ("returns", "driver")  # of a worker
_EDGES = (*LATENESS_EDGES_S, "+Inf")


def exposition(sight: Sight | None, silent_s: float, record: Record) -> str:
    """All figures: what was seen so many seconds ago, and the newest round's record."""
    lines: list[str] = []
    if sight is not None:
        lines += _of_server(sight, silent_s)
        lines += _of_workers([(age_s + silent_s, beat) for age_s, beat in sight.workers])
    lines += _of_round(record)
    return "\n".join([*lines, ""])


def _of_server(sight: Sight, silent_s: float) -> Iterator[str]:
    yield from _metric("page_view_age_s", "since the server was last seen", [("", silent_s)])
    for name, count in sight.counters.items():
        yield from _metric(f"server_{name}_total", "since the server started", [("", count)])
    yield from _metric("trainers", "trainers that are connected", [("", len(sight.trainers))])
    yield from _metric("server_workers", "workers that are connected", [("", len(sight.workers))])


def _of_workers(workers: list[tuple[float, Beat]]) -> Iterator[str]:
    labels = [f'worker="{_escaped(beat.worker)}"' for _, beat in workers]
    ages = [(label, age_s) for label, (age_s, _) in zip(labels, workers, strict=True)]
    yield from _metric("worker_beat_age_s", "since the worker's newest sign of life", ages)
    for field, figure in FIGURES.items():
        if field not in NO_NUMBERS:
            values: list[Labelled] = []
            for label, (_, beat) in zip(labels, workers, strict=True):
                values += _numbers(label, getattr(beat.condition, field))
            yield from _metric(f"worker_{figure.metric_of(field)}", figure.meaning, values)


def _numbers(label: str, value: float | str | tuple[int, ...]) -> list[Labelled]:
    """A number; of a text, whether there is one; of bins, all up to each edge."""
    if isinstance(value, tuple):
        sums = itertools.accumulate(value)
        return [(f'{label},le="{edge}"', count) for edge, count in zip(_EDGES, sums, strict=False)]
    return [(label, int(bool(value)) if isinstance(value, str | bool) else value)]


def _of_round(record: Record) -> Iterator[str]:
    numbers = {}  # by a name that Prometheus reads; an agent names its metrics as it likes
    for name, value in numbers_of(record).items():
        numbers[re.sub(r"\W", "_", name, flags=re.ASCII)] = value
    for name, value in numbers.items():
        yield from _metric(name, "see docs/metrics.md", [("", value)])


def _metric(name: str, about: str, values: Iterable[Labelled]) -> Iterator[str]:
    yield f"# HELP tmrl_{name} {about}"
    yield f"# TYPE tmrl_{name} {'counter' if name.endswith('_total') else 'gauge'}"
    for labels, value in values:
        yield f"tmrl_{name}{{{labels}}} {value}" if labels else f"tmrl_{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")
