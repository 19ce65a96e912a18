"""Writes the tables of docs/benchmarks.md and the pages below it from figures/NAME.json: `python
tests/benchmarks/_page.py`.

A table stands between `<!-- figures: NAME -->` and `<!-- end -->`. `summary` is the one at the top;
`SUMMARY` lists its figures. A script with `--keep` rewrites its file.
"""

import json
import re
from pathlib import Path

from _harness import FIGURES, text

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "benchmarks.md", *sorted((DOCS / "benchmarks").glob("*.md"))]
BLOCK = re.compile(r"(?<=<!-- figures: )(\w+)( -->\n).*?(?=<!-- end -->)", re.S)
COLUMNS = "ours", "tmrl 0.7.1", "peer", "limit"
SUMMARY = (  # the text for readers, the file, and the row
    ("a step beside `env.step` and the decision, µs", "control_loop", "flat: outside, p50, µs"),
    ("a decision of a 64×64 actor, µs", "control_loop", "flat: act, p50, µs"),
    (
        "overruns of 1,000 steps at 500 Hz, beside a busy trainer",
        "control_loop",
        "500 Hz: overruns of 1,000",
    ),
    (
        "0.28 MB of weights, until they act, ms",
        "weights",
        "0.28 MB, until the first action with them, ms",
    ),
    ("50 MB of weights, ms", "weights", "50 MB, until the first action with them, ms"),
    ("samples/s from the worker's log to the memory", "relay", "packets: samples/s"),
    (
        "batches/s of 256 from 1,000,000 transitions",
        "memory",
        "batches/s of 1,000,000 drone transitions",
    ),
    ("training held by a checkpoint, ms", "checkpoint", "training held by a checkpoint, ms"),
    (
        "1,000,000 transitions resumed, s",
        "checkpoint",
        "resumed, 1,000,000 drone transitions from the log, s",
    ),
    (
        "SAC, 64×64, training steps/s, times SBX's",
        "learner",
        "SAC's steps/s, times SBX's: 64×64, batch 128, 1 thread",
    ),
    (
        "two trainers' share of two that do not speak",
        "trainers",
        "share of two that do not speak to each other",
    ),
    (
        "Hopper's return after 50,000 steps, CrossQ",
        "recipe",
        "Hopper-v5, crossq: after 50,000 steps",
    ),
    ("a worker's start to its first step, s", "start", "worker, until its first step, s"),
)


def read(name):
    return json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))


def table(columns, rows):
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield f"| {' | '.join(text(row.get(column, '')) for column in columns)} |"


def block(name):
    """Return a file's table, below a line about the origin of its figures."""
    found = read(name)
    columns = list(dict.fromkeys(column for row in found["rows"] for column in row))
    commit = f"commit {found['commit']}" if found["commit"] else ""
    load = f"load: {found['load']}" if found["load"] else ""
    origin = [f"`{found['command']}`", found["machine"], load, found["date"], commit]
    return "\n".join(
        [f"{'; '.join(filter(None, origin))}.", "", *table(columns, found["rows"]), ""]
    )


def summary():
    rows = []
    for told, name, what in SUMMARY:
        found = read(name)
        (row,) = (row for row in found["rows"] if row["what"] == what)
        rows.append({"date": found["date"], "commit": found["commit"]} | row | {"what": told})
    return "\n".join([*table(["what", *COLUMNS, "date", "commit"], rows), ""])


def updated(page):
    """Return the text of a page with its tables up to date."""

    def again(found):
        name, begin = found.groups()
        return name + begin + (summary() if name == "summary" else block(name))

    return BLOCK.sub(again, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(updated(page), encoding="utf-8")
