"""The drone learns behind an engine of three nodes, with the command of a user, on one machine."""

from statistics import fmean

import pytest
from engine_nodes import Nodes
from kit.pythons import python

from tmrl_like.engine.subjects import stream_name
from tmrl_like.metrics.reading import read_records


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_drone_learns_behind_an_engine(tmp_path):
    with Nodes(tmp_path / "engine", 3, is_open=True) as nodes:
        engine = ("--server.engine", ",".join(nodes.urls))
        words = ("run", "config/drone.yaml", *engine, "--trainer.max_minutes", "2")
        python("-m", "tmrl_like", *words, TMRL_LIKE_HOME=str(tmp_path / "home"))
        stream = stream_name("drone")
        assert nodes.streams(nodes.leader(stream))[stream]["state"]["last_seq"] > 100
    records = read_records(tmp_path / "home/runs/drone/metrics.jsonl")
    first, *later = [record for record in records if record.get("episodes_test")]
    after = fmean(record["return_test_mean"] for record in later[-5:])
    assert after > first["return_test_mean"] + 10
    assert fmean(record["terminated_test_share"] for record in later[-5:]) >= 0.6
