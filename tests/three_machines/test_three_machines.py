"""Server, trainer and worker on three machines: network namespaces, with the worker behind a NAT
gateway.

    server 10.231.0.1 ──┐
    trainer 10.231.0.2 ─┴─ gateway (NAT, lets nobody in) ── worker 10.231.1.2

Needs root, `ip` and `nft`; elsewhere the tests are skipped with the reason.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.waiting import until

CONFIG = Path(__file__).parents[2] / "config" / "pendulum.yaml"
SERVER, TRAINER, GATE, WORKER = (
    f"tmrl-{os.getpid()}-{name}" for name in ("srv", "trn", "gate", "wrk")
)
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


def sh(*command, text=None):
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, timeout=20
    ).stdout


def namespaces_are_possible():
    if os.name != "posix" or os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("nft")):
        return False
    try:
        sh("ip", "netns", "add", f"tmrl-{os.getpid()}-probe")
        sh("ip", "netns", "exec", f"tmrl-{os.getpid()}-probe", "nft", "-f", "-", text=NAT)
    except (subprocess.CalledProcessError, OSError):
        return False
    finally:
        subprocess.run(
            ["ip", "netns", "del", f"tmrl-{os.getpid()}-probe"], capture_output=True, check=False
        )
    return True


def inside(name, *command):
    return ["ip", "netns", "exec", name, *command]


@pytest.fixture
def network():
    """Make three machines and a gateway; remove them afterwards, with all processes in them."""
    try:
        for name in (SERVER, TRAINER, GATE, WORKER):
            sh("ip", "netns", "add", name)
            sh(*inside(name, "ip", "link", "set", "lo", "up"))
        sh(*inside(GATE, "ip", "link", "add", "out", "type", "bridge"))
        sh(*inside(GATE, "ip", "link", "set", "out", "up"))
        for name, address in ((SERVER, "10.231.0.1/24"), (TRAINER, "10.231.0.2/24")):
            _wire(name, address, bridge=True)
        _wire(WORKER, "10.231.1.2/24", bridge=False)
        sh(*inside(GATE, "ip", "addr", "add", "10.231.0.254/24", "dev", "out"))
        sh(*inside(GATE, "ip", "addr", "add", "10.231.1.254/24", "dev", "in"))
        sh(*inside(WORKER, "ip", "route", "add", "default", "via", "10.231.1.254"))
        sh(*inside(SERVER, "ip", "route", "add", "10.231.1.0/24", "via", "10.231.0.254"))
        sh(*inside(GATE, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))
        sh(*inside(GATE, "nft", "-f", "-"), text=NAT)
        yield
    finally:
        for name in (SERVER, TRAINER, GATE, WORKER):
            pids = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
            ).stdout
            for pid in pids.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _wire(name, address, bridge):
    far = name[-6:] if bridge else "in"
    sh(
        *inside(
            GATE, "ip", "link", "add", far, "type", "veth", "peer", "name", "eth0", "netns", name
        )
    )
    sh(*inside(GATE, "ip", "link", "set", far, *(("master", "out") if bridge else ()), "up"))
    sh(*inside(name, "ip", "addr", "add", address, "dev", "eth0"))
    sh(*inside(name, "ip", "link", "set", "eth0", "up"))


class Machine:
    """A namespace with its own home."""

    def __init__(self, name, home):
        self.name = name
        self.environment = {**os.environ, "TMRL_LIKE_HOME": str(home), "OMP_NUM_THREADS": "1"}
        self.home = home
        self.processes = []

    def command(self, *arguments):
        return inside(self.name, sys.executable, "-m", "tmrl_like", *arguments)

    def run(self, *arguments):
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments):
        with self.home.with_suffix(".log").open("a") as log:
            self.processes.append(
                subprocess.Popen(
                    self.command(*arguments),
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    text=True,
                )
            )

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(10)

    def log(self):
        return self.home.with_suffix(".log").read_text()


@pytest.mark.skipif(
    not namespaces_are_possible(), reason="needs root, ip and nft to make network namespaces"
)
@pytest.mark.timeout(180)
def test_three_machines_with_the_worker_behind_nat(network, tmp_path):
    machines = [Machine(name, tmp_path / name[-3:]) for name in (SERVER, TRAINER, WORKER)]
    try:
        run_on_three_machines(*machines)
    finally:
        for machine in machines:
            machine.stop()
            if machine.processes:
                print(machine.log())


def run_on_three_machines(server, trainer, worker):
    dial = subprocess.run(
        inside(SERVER, "ping", "-c1", "-W1", "10.231.1.2"), capture_output=True, check=False
    )
    assert dial.returncode != 0, "the worker should not be reachable from outside"

    server.start("server", str(CONFIG), "--server.host", "10.231.0.1")
    worker_line = server.run("keys", "invite", "arm", "--role", "worker").split()[-1]
    trainer_line = server.run("keys", "invite", "cluster", "--role", "trainer").split()[-1]
    worker.run("keys", "join", worker_line)
    trainer.run("keys", "join", trainer_line)
    for machine, role in ((worker, "worker"), (trainer, "trainer")):
        options = (
            ["--trainer.steps", "20", "--trainer.start_training", "50"] if role == "trainer" else []
        )
        machine.start(role, str(CONFIG), "--server.host", "10.231.0.1", *options)

    metrics = trainer.home / "runs" / "pendulum" / "metrics.jsonl"
    weights = worker.home / "runs" / "pendulum" / "weights" / "worker.safetensors"
    until(lambda: _rounds(metrics) and weights.exists(), "a round and a policy", 90.0)
    assert _rounds(metrics)[0]["env_steps_total"] >= 50
    assert "arm" in server.log()

    server.run("keys", "revoke", "arm")
    until(lambda: worker.processes[0].poll() is not None, "an end of the revoked worker", 30.0)
    assert "refuse" in worker.log()


def _rounds(path):
    if not path.exists():
        return []
    records = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return [record for record in records if record["kind"] == "round"]
