"""The drone learns behind an engine of three nodes, with the command of a user, on one machine."""

import json

import pytest
from engine_nodes import Nodes
from kit.pythons import python

from tmrl_like.engine.subjects import stream_name


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_drone_learns_behind_an_engine(tmp_path):
    with Nodes(tmp_path / "engine", 3, is_open=True) as nodes:
        engine = ("--server.engine", ",".join(nodes.urls))
        words = ("run", "config/drone.yaml", *engine, "--trainer.max_minutes", "2")
        python("-m", "tmrl_like", *words, TMRL_LIKE_HOME=str(tmp_path / "home"))
        stream = stream_name("drone")
        assert nodes.streams(nodes.leader(stream))[stream]["state"]["last_seq"] > 100
    records = (tmp_path / "home/runs/drone/metrics.jsonl").read_text().splitlines()
    rounds = [
        r for r in map(json.loads, records) if r["kind"] == "round" and r.get("episodes_test")
    ]

    def means(metric):
        """Return a metric's mean in the first round and in the last five."""
        return [sum(r[metric] for r in part) / len(part) for part in (rounds[:1], rounds[-5:])]

    before, after = means("return_test_mean")
    assert after > before + 10
    assert means("terminated_test_share")[1] >= 0.6
