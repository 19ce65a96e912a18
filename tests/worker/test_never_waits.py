"""The control loop waits for nothing but the environment's clock, even if other parts are held by a
lock of the test.
"""

import threading

import pytest
from house import offer, publish
from kit.environments import calling

from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.source import Source
from tmrl_like.policies.actor import ActorModule
from tmrl_like.server.relay import Relay
from tmrl_like.trainer.trainer_link import TrainerLink

STEPS = 30  # three episodes
FAR_S = 30.0  # a time-out that correct code never reaches


class Clock:
    """Lets an environment step when the test says so."""

    def __init__(self):
        self._ticks = threading.Semaphore(0)
        self._steps = threading.Semaphore(0)

    def wait_for_tick(self):
        self._ticks.acquire()
        self._steps.release()

    def step(self, number=1):
        """Let the environment make `number` steps; return whether it made all of them in time."""
        for _ in range(number):
            self._ticks.release()
            if not self._steps.acquire(timeout=FAR_S):
                return False
        return True

    def let_go(self):
        self._ticks.release(10**6)


class Gate:
    """A gate in front of a function; while it is shut, callers of the function wait in it."""

    def __init__(self):
        self.is_open, self.entered = threading.Event(), threading.Event()
        self.is_open.set()

    def around(self, call):
        def gated(*args, **kwargs):
            if not self.is_open.is_set():
                self.entered.set()
                self.is_open.wait()
            return call(*args, **kwargs)

        return gated


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.is_open.set()


@pytest.fixture
def start(zmq_house, clock, gate, until, tmp_path):
    """Return a function that starts server, trainer and a worker that acts with policy 1."""
    workers = []

    def start():
        trainer = zmq_house.trainer()
        worker = zmq_house.worker(
            calling(lambda env: clock.wait_for_tick()),
            outbox=OutboxOptions(max_age_s=0.0),
            spool=tmp_path / "spool",
        )
        workers.append(worker)
        offer(trainer, worker)  # before the first sample, which may hold up the link
        zmq_house.start(worker.run)
        assert clock.step()
        until(lambda: worker.policy_version == 1)
        return trainer, worker

    yield start
    for worker in workers:
        worker.stop()
    clock.let_go()


def steps_while_held(clock, gate):
    """Make steps while a thread waits in the gate."""
    assert gate.entered.wait(FAR_S)
    assert clock.step(STEPS), "the loop waits"
    gate.is_open.set()


@pytest.mark.fault("robots", "weights take long to load", "the control loop steps on")
def test_steps_go_on_while_weights_load_and_a_policy_that_is_ready_is_taken(
    start, clock, gate, until, monkeypatch
):
    monkeypatch.setattr(ActorModule, "load_weights", gate.around(ActorModule.load_weights))
    trainer, worker = start()
    offer(trainer, worker)
    gate.is_open.clear()
    publish(trainer)
    assert gate.entered.wait(FAR_S)
    assert clock.step(2)
    assert worker.policy_version == 2
    steps_while_held(clock, gate)
    until(lambda: clock.step() and worker.policy_version == 3)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Source, "packet_after"), (Relay, "handle"), (TrainerLink, "on_message")],
)
def test_steps_go_on_while_link_server_or_trainer_stand_still(
    owner, name, start, clock, gate, until, monkeypatch
):
    monkeypatch.setattr(owner, name, gate.around(getattr(owner, name)))
    _, worker = start()
    gate.is_open.clear()
    assert clock.step(2)  # the second step begins when the first one's sample is appended
    steps_while_held(clock, gate)
    assert worker.condition().env_steps >= STEPS
