"""Nodes, gateways and trainers of an engine are killed at random under load.

The workers are light ones (`light_fleet`), each at one of two gateways. The effect of a
kill is measured at the workers: the time until each has a packet stored that it made after the
kill.
"""

import random
import shutil
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from chaos_rig import MANY, RUN, Rig, free_port, wait_until
from light_fleet import LightFleet

from tmrl_like.engine.options import EngineOptions
from tmrl_like.engine.subjects import stream_name

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from engine_nodes import Nodes

WORKERS = 40
STREAM = stream_name(RUN)


class EngineRig:
    """Nodes, two gateways and light workers; the tests start trainers."""

    def __init__(self, folder, stack, nodes, max_bytes=8 << 30):
        self.nodes = stack.enter_context(Nodes(folder / "engine", nodes, is_open=True))
        engine = EngineOptions(nodes=tuple(self.nodes.urls), run=RUN, max_bytes=max_bytes)
        self.rig = Rig("zmq", folder / "rig", stack, engine=engine)
        self.ports = [self.rig.place.port, free_port()]
        self.gateways = [self.rig.server_part(port) for port in self.ports]
        self._stack = stack

    def fleet(self, workers, ballast_bytes=0):
        """Start light workers, and wait until a trainer has samples of all of them."""
        fleet = LightFleet(workers, self.ports, self.rig.place.keys, ballast_bytes)
        self._stack.enter_context(fleet)
        wait_until(lambda: fleet.is_stored([0] * workers), 60, "samples of all workers are stored")
        return fleet

    def waiting_bytes(self):
        """Return the size of the stream according to its leader."""
        leader = self.nodes.leader(STREAM)
        assert leader is not None
        return self.nodes.streams(leader)[STREAM]["state"]["bytes"]

    # faults: each is repaired by the end of the call

    def kill_leader(self, rng, with_disk=False):
        leader = self.nodes.leader(STREAM)
        victim = rng.randrange(3) if leader is None else leader
        self.nodes.kill(victim)
        if with_disk:
            # without a leader it may be a node that has no disk yet
            shutil.rmtree(self.nodes.home(victim) / "streams", ignore_errors=True)
        time.sleep(rng.uniform(0.0, 3.0))
        self.nodes.start(victim, wait=False)

    def kill_leader_and_its_disk(self, rng):
        self.kill_leader(rng, with_disk=True)

    def kill_a_gateway_and_all_nodes(self, rng):
        """Kill all nodes, then a gateway with packets that it has received and no node has."""
        for i in range(3):
            self.nodes.kill(i)
        time.sleep(0.5)
        self.kill_a_gateway(rng)
        for i in range(3):
            self.nodes.start(i, wait=False)

    def kill_a_gateway(self, rng):
        rng.choice(self.gateways).restart()


@pytest.fixture
def engines(tmp_path):
    with ExitStack() as stack:
        yield lambda *args, **kwargs: EngineRig(tmp_path, stack, *args, **kwargs)


@pytest.mark.fault(
    "processes", "a node of an engine, or a gateway, is killed", "no sample is lost or doubled"
)
@pytest.mark.fault(
    "processes", "a gateway and all nodes are killed at once", "no sample is lost or doubled"
)
@pytest.mark.parametrize(
    ("victim", "count", "limit_s"),
    [
        # the long form below measures the time
        pytest.param("kill_a_gateway_and_all_nodes", 1, 60.0),
        pytest.param("kill_leader", 20, 5.0, marks=MANY),
        pytest.param("kill_leader_and_its_disk", 3, 15.0, marks=MANY),
        pytest.param("kill_a_gateway", 20, 4.0, marks=MANY),
        pytest.param("kill_a_gateway_and_all_nodes", 3, 20.0, marks=MANY),
    ],
)
def test_killed_nodes_and_gateways_cost_no_sample(engines, seed, figure, victim, count, limit_s):
    engine, rng = engines(3), random.Random(seed)
    trainer = engine.rig.trainer_part()  # in this process it would wait for the workers' threads
    workers, pause_s = (WORKERS, 2.0) if count > 1 else (8, 0.1)
    fleet, took = engine.fleet(workers), []
    for _ in range(count):
        time.sleep(rng.uniform(0.0, pause_s))
        started, marks = time.monotonic(), fleet.marks()
        getattr(engine, victim)(rng)
        wait_until(lambda m=marks: fleet.is_stored(m), 60.0, "samples are stored again")
        took.append(time.monotonic() - started)
    last = engine.rig.succeed(trainer)
    fleet.stop()
    found = engine.rig.settle(last, made=fleet.produced())
    figure(
        f"{count} x {victim}, felt for {statistics.median(took):.1f} s, {max(took):.1f} s at most: "
        f"{found}"
    )
    assert found.exactly_once, str(found)
    assert statistics.median(took) <= limit_s, took


@pytest.mark.parametrize(
    ("workers", "max_bytes", "ballast_bytes"),
    [pytest.param(8, 1 << 20, 8000), pytest.param(WORKERS, 5 << 20, 1000, marks=MANY)],
)
def test_a_full_stream_and_dead_workers_cost_no_sample(
    engines, seed, figure, workers, max_bytes, ballast_bytes
):
    """The trainer is away until the stream is full. Samples that it acknowledged to workers which
    have ended since are not lost.
    """
    engine = engines(1, max_bytes)
    first = engine.rig.trainer(checkpoint_path=engine.rig.place.checkpoint)
    fleet = engine.fleet(workers, ballast_bytes)
    first.close()
    wait_until(
        lambda: engine.waiting_bytes() > max_bytes - 3 * (ballast_bytes + 1000),
        60,
        "the stream is full",
    )
    wait_until(
        lambda: all(w.made > w.received + 3 for w in fleet.workers), 60, "the stream takes no more"
    )
    fleet.stop()
    held, beyond = engine.waiting_bytes(), sum(w.made - w.received for w in fleet.workers)
    assert held <= max_bytes
    dead = fleet.workers[: workers // 2]
    assert any(worker.received > worker.stored for worker in dead)
    for worker in dead:
        worker.close(0.0)
    last = engine.rig.trainer(checkpoint_path=engine.rig.place.checkpoint)
    made = fleet.produced() | {(fleet.workers.index(w), 1): w.received for w in dead}
    found = engine.rig.settle(last, made=made)
    figure(
        f"a stream of {max_bytes >> 20} MB full with {held} bytes, {beyond} packets beyond: {found}"
    )
    assert found.exactly_once, str(found)
