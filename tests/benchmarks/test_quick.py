"""Each script of this folder runs to its end with `--quick`."""

import json
from pathlib import Path

import pytest
from _harness import in_turns, keep, summary, text
from kit.pythons import python

SCRIPTS = sorted(
    p for p in Path(__file__).parent.glob("*.py") if not p.name.startswith(("_", "test_"))
)


@pytest.mark.long
@pytest.mark.timeout(90)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_benchmark_says_in_a_minute_what_it_measured_where_and_when(script, tmp_path):
    shown, _ = python(script, "--quick", cwd=tmp_path, within_s=75)
    said = json.loads(shown.splitlines()[-1])
    assert set(said) == {"command", "machine", "load", "commit", "date", "rows"}
    assert all("what" in row for row in said["rows"])


def test_calls_take_turns_and_are_told_by_median_and_spread():
    order = []

    def call(name):
        order.append(name)
        return 1000.0 * len(order)

    turns = in_turns(3, a=lambda: call("a"), b=lambda: call("b"))
    assert "".join(order) == "ababab"
    assert summary(turns["a"]) == {"median": 3000.0, "low": 1000.0, "high": 5000.0, "of": 3}
    assert text(summary(turns["a"])) == "3,000 (1,000 to 5,000)"


def test_what_a_peer_did_stays_where_it_is_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr("_harness.FIGURES", tmp_path)
    keep("x", {"rows": [{"what": "a", "ours": 1, "tmrl 0.7.1": 9}]})
    keep("x", {"rows": [{"what": "a", "ours": 2}, {"what": "b", "ours": 3}]})
    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert rows == [{"what": "a", "ours": 2, "tmrl 0.7.1": 9}, {"what": "b", "ours": 3}]
