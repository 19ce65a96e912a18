"""The drone learns behind an engine, with the commands as typed, in fresh folders, all on
loopback.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from kit.ports import free_ports

ROOT = Path(__file__).parents[2]
DRONE = "config/drone.yaml"
MINUTES = 2

THREE_NODES = """
    nats-server -js -n a -a 127.0.0.1 -p {n1} -sd {home}/a \
        --cluster_name c --cluster {c1} --routes {routes} &
    nats-server -js -n b -a 127.0.0.1 -p {n2} -sd {home}/b \
        --cluster_name c --cluster {c2} --routes {routes} &
    nats-server -js -n c -a 127.0.0.1 -p {n3} -sd {home}/c \
        --cluster_name c --cluster {c3} --routes {routes} &
    tmrl-like server {drone} --server.engine {nodes} --server.port {s1} &
    tmrl-like server {drone} --server.engine {nodes} --server.port {s2} &
    tmrl-like worker {drone} --name arm-1 --server.host 127.0.0.1:{s1},127.0.0.1:{s2} &
    tmrl-like worker {drone} --name arm-2 --server.host 127.0.0.1:{s1},127.0.0.1:{s2} &
    torchrun --nproc-per-node=2 --max-restarts=20 \
        -m tmrl_like trainer {drone} --server.engine {nodes} --trainer.max_minutes {minutes}
"""


class Shell:
    """Runs lines as a shell does: in turn, and those that end with & in the background."""

    def __init__(self, folder, stack):
        programs = Path(sys.executable).parent
        path = os.pathsep.join((str(programs), os.environ["PATH"]))
        self._environment = os.environ | {
            "PATH": path,
            "TMRL_LIKE_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
        }
        self._folder, self._programs, self._stack = folder, programs, stack
        self._lines = 0

    def run(self, script):
        for line in script.replace("\\\n", " ").strip().splitlines():
            words = shlex.split(line.removesuffix("&"))
            self._lines += 1
            file = self._folder / f"{self._lines}.txt"
            with file.open("wb") as out:
                process = subprocess.Popen(
                    [str(self._programs / words[0]), *words[1:]],
                    cwd=ROOT,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            self._stack.callback(end, process)
            if line.endswith("&"):
                time.sleep(1.0)
                assert process.poll() is None, f"{line}\n{file.read_text()}"
            else:
                code = process.wait(60 * (MINUTES + 3))
                assert code == 0, f"{line}\n{file.read_text()}"


def end(process):
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
        for child in family:
            if child.is_running():
                child.kill()


@pytest.fixture
def typed(tmp_path):
    """Return a function that runs a script with free ports filled in."""
    with ExitStack() as stack:
        n1, n2, n3, s1, s2, *others = free_ports(8)
        nodes = ",".join(f"nats://localhost:{port}" for port in (n1, n2, n3))
        names = {
            "n1": n1,
            "n2": n2,
            "n3": n3,
            "s1": s1,
            "s2": s2,
            "nodes": nodes,
            "drone": DRONE,
            "minutes": MINUTES,
        }
        clusters = [f"nats://127.0.0.1:{port}" for port in others]
        names |= dict(zip(("c1", "c2", "c3"), clusters, strict=True)) | {
            "routes": ",".join(clusters)
        }
        names["home"] = tmp_path
        yield lambda script: Shell(tmp_path, stack).run(script.format(**names))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_drone_learns_behind_an_engine(typed, tmp_path):
    typed(THREE_NODES)
    records = (tmp_path / "home/runs/drone/metrics.jsonl").read_text().splitlines()
    rounds = [
        r for r in map(json.loads, records) if r["kind"] == "round" and r.get("episodes_test")
    ]
    before, after = rounds[:3], rounds[-5:]
    returns = [sum(r["return_test_mean"] for r in part) / len(part) for part in (before, after)]
    arrived = [
        sum(r["terminated_test_share"] for r in part) / len(part) for part in (before, after)
    ]
    print(
        f"mean return {returns[0]:.2f} -> {returns[1]:.2f}, at the target {arrived[0]:.0%} -> "
        f"{arrived[1]:.0%}"
    )
    # within three rounds an idle machine learns to arrive, but not to do so fast
    assert returns[1] > returns[0] + 10
    assert arrived[1] >= 0.6
