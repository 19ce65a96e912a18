"""The drone learns behind an engine of three nodes, with the commands of a user, on one machine."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from engine_nodes import Nodes
from kit.ports import free_ports

ROOT = Path(__file__).parents[2]
DRONE, MINUTES = "config/drone.yaml", 2


@pytest.fixture
def start(tmp_path):
    """Return a function that starts `python -m …`; what it has started ends with the test."""
    environment = os.environ | {
        "TMRL_LIKE_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("w"))

        def run(words):
            command = [sys.executable, "-m", *words.split()]
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, **streams)
            stack.callback(end, process)
            return process

        yield run


def end(process):
    if process.poll() is None:
        for part in (*psutil.Process(process.pid).children(recursive=True), process):
            part.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_drone_learns_behind_an_engine(start, tmp_path):
    ports = free_ports(2)
    with Nodes(tmp_path / "engine", 3, is_open=True) as nodes:
        engine = f"--server.engine {','.join(nodes.urls)}"
        for port in ports:
            start(f"tmrl_like server {DRONE} {engine} --server.port {port}")
            start(f"tmrl_like worker {DRONE} --name arm-{port} --server.port {port}")
        trainer = start(f"tmrl_like trainer {DRONE} {engine} --trainer.max_minutes {MINUTES}")
        assert trainer.wait(60 * (MINUTES + 3)) == 0, (tmp_path / "log").read_text()
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
