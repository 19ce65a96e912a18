"""The page's figures in Prometheus' text format."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tmrl_like.metrics.reading import Record, numbers_of
from tmrl_like.wire.condition import FIGURES
from tmrl_like.wire.messages import Beat, Sight

NO_NUMBERS = ("returns", "driver")  # figures of a worker that are not numbers


def exposition(sight: Sight | None, silent_s: float, record: Record) -> str:
    """Return all figures: those seen `silent_s` seconds ago, and the newest round's record."""
    lines = [
        f"{re.sub(r'[^a-zA-Z0-9_]', '_', name)} {value}"
        for name, value in numbers_of(record).items()
    ]
    if sight is not None:
        lines.append(f"page_view_age_s {silent_s}")
        lines.append(f"trainers {len(sight.trainers)}")
        lines.append(f"server_workers {len(sight.workers)}")
        lines += [f"server_{name}_total {count}" for name, count in sight.counters.items()]
        for age_s, beat in sight.workers:
            lines += _of_worker(age_s + silent_s, beat)
    # sorted, so that lines of one metric are adjacent
    return "".join(f"tmrl_{line}\n" for line in sorted(lines))


def _of_worker(age_s: float, beat: Beat) -> Iterator[str]:
    name = beat.worker.replace("\\", r"\\").replace('"', r"\"")
    label = f'worker="{name}"'
    yield f"worker_beat_age_s{{{label}}} {age_s}"
    for field, figure in FIGURES.items():
        metric, value = f"worker_{figure.metric_of(field)}", getattr(beat.condition, field)
        if field in NO_NUMBERS:
            continue
        if isinstance(value, str | bool):  # a text becomes 1 if it is not empty, else 0
            value = int(bool(value))
        yield f"{metric}{{{label}}} {value}"
