"""The page and the console use only documented names of metrics and of workers' figures."""

import inspect
import re
from pathlib import Path

from tmrl_like.metrics import sinks
from tmrl_like.page import history, watcher
from tmrl_like.wire.condition import FIGURES
from tmrl_like.wire.messages import Beat

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
PAGE = (Path(watcher.__file__).parent / "static" / "page.js").read_text(encoding="utf-8")
MADE_THERE = {"rate", "overrunning", "state", "kind"}  # computed by the page itself


def explained():
    """Return the documented metrics; tests/test_docs.py compares them with those that a training
    writes.
    """
    cells = re.findall(r"^\| (`.*?) \|", DOCS.read_text(encoding="utf-8"), re.M)
    summed = {figure.metric_of(field) for field, figure in FIGURES.items() if figure.is_summed}
    return summed | {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_browsers_figures_of_a_worker_are_those_that_it_is_sent():
    used = set(re.findall(r"\bw\.(\w+)", PAGE)) | set(re.findall(r'\bsum\("(\w+)"\)', PAGE))
    assert used - MADE_THERE <= set(watcher.described(0.0, Beat()))


def test_metrics_that_are_shown_are_metrics_that_are_explained():
    charts = PAGE.partition("const CHARTS")[2].partition("];")[0]
    drawn = set(re.findall(r'"(\w+)"', "".join(re.findall(r"names: \[(.*?)\]", charts))))
    assert all(name.startswith(history.DRAWN) for name in drawn)
    cards = PAGE.partition("function drawCards")[2].partition("\n}")[0]
    rows = inspect.getsource(sinks.rows_of_round)
    used = drawn.union(
        re.findall(r"\br\.(\w+)", cards),
        re.findall(r'\br(?:\[|\.get\()"(\w+)"', rows),
        sinks.SHOWN,
    )
    assert used - explained() == {"return_test"}  # a curve of the episodes' "return"
    for begin in history.DRAWN:
        assert any(name.startswith(begin) for name in explained())
