"""The page's figures in Prometheus' text format."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from tmrl_like.metrics.reading import Record
from tmrl_like.types import LATENESS_EDGES_S
from tmrl_like.wire.messages import Beat, Sight

_OF_WORKERS = {  # field of a beat: name, kind, what it is
    "env_steps": ("env_steps_total", "counter", "environment steps"),
    "overruns": ("overruns_total", "counter", "time-steps that missed their deadline"),
    "safe_steps": ("safe_steps_total", "counter", "steps that the safe action drove"),
    "env_faults": ("env_faults_total", "counter", "how often the environment raised or hung"),
    "env_rebuilds": ("env_rebuilds_total", "counter", "how often the environment was rebuilt"),
    "lost_samples": ("lost_samples_total", "counter", "samples that were dropped"),
    "unacknowledged_samples": ("unacknowledged_samples", "gauge", "samples that the trainer has not stored yet"),
    "policy_version": ("policy_version", "gauge", "version of the policy that drives"),
    "policy_age_s": ("policy_age_seconds", "gauge", "since that policy was received"),
    "action_delay_s": ("action_delay_seconds", "gauge", "from an observation to the action chosen on it"),
    "time_step_s": ("time_step_seconds", "gauge", "nominal time-step; 0: not in real time"),
    "alarm": ("alarm", "gauge", "1: the worker says that something is wrong"),
    "ended": ("ended", "gauge", "1: it no longer drives"),
}
_OF_SERVER = {"samples": "samples relayed", "packets": "packets relayed", "policies": "policies relayed"} | {
    "malformed": "messages that were not understood",
    "refused": "peers that were refused",
    "dropped": "packets that were dropped",
}


def exposition(sight: Sight | None, silent_s: float, record: Record) -> str:
    """All figures: what was seen so many seconds ago, and the newest round's record."""
    lines = []
    if sight is not None:
        lines += _metric("page_view_age_seconds", "gauge", "since the server was last seen", [("", silent_s)])
        for name, about in _OF_SERVER.items():
            lines += _metric(f"server_{name}_total", "counter", about, [("", sight.counters[name])])
        lines += _metric("trainers", "gauge", "trainers that are connected", [("", len(sight.trainers))])
        beats = [(age_s + silent_s, beat) for age_s, beat in sight.beats]
        lines += _metric("server_workers", "gauge", "workers that are connected", [("", len(beats))])
        lines += _of_workers(beats)
    numbers = {}  # by a name that Prometheus reads; an agent names its metrics as it likes
    for name, value in record.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[re.sub(r"\W", "_", name, flags=re.ASCII)] = value
    for name, value in numbers.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += _metric(name, kind, "see docs/metrics.md", [("", value)])
    return "\n".join([*lines, ""])


def _of_workers(beats: Sequence[tuple[float, Beat]]) -> Iterator[str]:
    labels = [f'worker="{_escaped(beat.worker)}"' for _, beat in beats]
    ages = [(label, age_s) for label, (age_s, _) in zip(labels, beats, strict=True)]
    yield from _metric("worker_beat_age_seconds", "gauge", "since the worker's newest sign of life", ages)
    for field, (name, kind, about) in _OF_WORKERS.items():
        values = [getattr(beat, field) for _, beat in beats]
        numbers = [float(bool(value)) if isinstance(value, str) else value for value in values]
        yield from _metric(f"worker_{name}", kind, about, list(zip(labels, numbers, strict=True)))
    buckets = []
    for label, (_, beat) in zip(labels, beats, strict=True):
        counts = itertools.accumulate(beat.late_steps)
        buckets += [(f'{label},le="{le}"', n) for le, n in zip((*LATENESS_EDGES_S, "+Inf"), counts, strict=False)]
    about = "steps by how late they were in seconds, up to `le`"
    yield from _metric("worker_late_steps_total", "counter", about, buckets)


def _metric(name: str, kind: str, about: str, values: Sequence[tuple[str, float]]) -> list[str]:
    head = [f"# HELP tmrl_{name} {about}", f"# TYPE tmrl_{name} {kind}"]
    return head + [f"tmrl_{name}{{{labels}}} {value}" if labels else f"tmrl_{name} {value}" for labels, value in values]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")
