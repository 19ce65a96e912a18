"""Server, trainer and worker on three machines: network namespaces, with the worker behind a NAT
gateway.

    server 10.231.0.1 ──┐
    trainer 10.231.0.2 ─┴─ gateway (NAT, lets nobody in) ── worker 10.231.1.2

Needs root, `ip` and `nft`; elsewhere the tests are skipped with the reason.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.waiting import until

from tmrl_like.metrics.reading import read_records

CONFIG = Path(__file__).parents[2] / "config" / "pendulum.yaml"
PREFIX = f"tmrl-{os.getpid()}"
SERVER, TRAINER, GATE, WORKER = (f"{PREFIX}-{name}" for name in ("srv", "trn", "gate", "wrk"))
NETWORK = """
ip netns add PREFIX-srv
ip netns add PREFIX-trn
ip netns add PREFIX-gate
ip netns add PREFIX-wrk
ip -n PREFIX-gate link add out type bridge
ip -n PREFIX-gate link add server type veth peer name eth0 netns PREFIX-srv
ip -n PREFIX-gate link add trainer type veth peer name eth0 netns PREFIX-trn
ip -n PREFIX-gate link add in type veth peer name eth0 netns PREFIX-wrk
ip -n PREFIX-gate link set server master out up
ip -n PREFIX-gate link set trainer master out up
ip -n PREFIX-gate link set out up
ip -n PREFIX-gate link set in up
ip -n PREFIX-srv addr add 10.231.0.1/24 dev eth0
ip -n PREFIX-trn addr add 10.231.0.2/24 dev eth0
ip -n PREFIX-gate addr add 10.231.0.254/24 dev out
ip -n PREFIX-gate addr add 10.231.1.254/24 dev in
ip -n PREFIX-wrk addr add 10.231.1.2/24 dev eth0
ip -n PREFIX-srv link set lo up
ip -n PREFIX-trn link set lo up
ip -n PREFIX-gate link set lo up
ip -n PREFIX-wrk link set lo up
ip -n PREFIX-srv link set eth0 up
ip -n PREFIX-trn link set eth0 up
ip -n PREFIX-wrk link set eth0 up
ip -n PREFIX-wrk route add default via 10.231.1.254
ip -n PREFIX-srv route add 10.231.1.0/24 via 10.231.0.254
"""
NAT = """
table ip nat {
  chain leaving {
    type nat hook postrouting priority 100;
    oifname "out" masquerade
  }
}
table ip filter {
  chain passing {
    type filter hook forward priority 0; policy drop;
    iifname "in" accept
    iifname "out" oifname "out" accept
    ct state established accept
  }
}
"""


def sh(words, text=None):
    return subprocess.run(
        words.split(), input=text, capture_output=True, text=True, check=True, timeout=20
    ).stdout


def inside(name, words, text=None):
    return sh(f"ip netns exec {name} {words}", text)


def remove(name):
    """Remove a namespace, with all processes in it."""
    with contextlib.suppress(subprocess.CalledProcessError, OSError):
        for pid in sh(f"ip netns pids {name}").split():
            os.kill(int(pid), signal.SIGKILL)
        sh(f"ip netns del {name}")


@pytest.fixture
def network():
    """Make three machines and a gateway, or skip the test; return a list for their processes, which
    end with them.
    """
    processes = []
    try:
        try:
            for line in NETWORK.replace("PREFIX", PREFIX).strip().splitlines():
                sh(line)
            inside(GATE, "tee /proc/sys/net/ipv4/ip_forward", "1")
            inside(GATE, "nft -f -", NAT)
        except (subprocess.CalledProcessError, OSError) as error:
            pytest.skip(f"needs root, ip and nft to make network namespaces: {error}")
        yield processes
    finally:
        for name in (SERVER, TRAINER, GATE, WORKER):
            remove(name)
        for process in processes:
            process.wait(10)


class Machine:
    """A namespace with its own home."""

    def __init__(self, name, home, processes):
        self._program = f"ip netns exec {name} {sys.executable} -m tmrl_like"
        self._environment = os.environ | {"TMRL_LIKE_HOME": str(home), "OMP_NUM_THREADS": "1"}
        self.home, self._processes = home, processes

    def run(self, words):
        command = f"{self._program} {words}".split()
        return subprocess.check_output(command, env=self._environment, text=True, timeout=60)

    def start(self, words):
        with self.home.with_suffix(".log").open("w") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            command = f"{self._program} {words}".split()
            self.process = subprocess.Popen(command, env=self._environment, **streams)
        self._processes.append(self.process)

    def log(self):
        return self.home.with_suffix(".log").read_text()


@pytest.mark.timeout(180)
def test_three_machines_with_the_worker_behind_nat(network, tmp_path):
    names = (SERVER, TRAINER, WORKER)
    server, trainer, worker = (Machine(name, tmp_path / name[-3:], network) for name in names)
    with pytest.raises(subprocess.CalledProcessError):  # nobody reaches the worker from outside
        inside(SERVER, "ping -c1 -W1 10.231.1.2")

    dial = f"{CONFIG} --server.host 10.231.0.1"
    server.start(f"server {dial}")
    for machine, role in ((worker, "worker"), (trainer, "trainer")):
        invited = server.run(f"keys invite {role}-1 --role {role}").split()[-1]
        machine.run(f"keys join {invited}")
    worker.start(f"worker {dial}")
    trainer.start(f"trainer {dial} --trainer.steps 20 --trainer.start_training 50")

    def rounds():
        return [record for record in read_records(metrics) if record["kind"] == "round"]

    metrics = trainer.home / "runs" / "pendulum" / "metrics.jsonl"
    weights = worker.home / "runs" / "pendulum" / "weights" / "worker.safetensors"
    until(lambda: rounds() and weights.exists(), "a round and a policy", 90.0)
    assert rounds()[0]["env_steps_total"] >= 50
    assert "worker-1" in server.log()

    server.run("keys revoke worker-1")
    until(lambda: worker.process.poll() is not None, "an end of the revoked worker", 30.0)
    assert "refuse" in worker.log()
