"""Several environments in one worker, each in its own lane, running freely or in lockstep with
training.
"""

import signal
import threading
import time
from types import SimpleNamespace

import pytest
from house import alone, publish
from kit.environments import calling
from kit.episodes import of_episodes
from kit.fakes import CountingAgent, CountingEnv

from tmrl_like.base.functional import partial
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.errors import ConfigError, RefusedError
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition
from tmrl_like.worker.lane import Lane
from tmrl_like.worker.link import WorkerRole

ENDLESS = {"epochs": 10**6, "rounds": 10**6, "start_training": 7}
SLOW = partial(CountingEnv, step_s=0.001)


def test_a_fault_in_one_environment_is_that_ones():
    made = iter([SLOW, partial(CountingEnv, raise_at=5), SLOW])
    with alone(lambda: next(made)(), envs=2) as worker:
        worker.run(nb_episodes=20, verbose=False)
        faults = [(lane.env.faults, lane.env.rebuilds) for lane in worker.lanes]
        assert (faults, worker.condition().env_steps) == ([(0, 0), (1, 1)], 19 * 10 + 4)


def test_a_lane_that_fails_for_good_ends_the_others():
    def fail(env):
        raise ConfigError("there is no motor")

    made = iter([SLOW, calling(fail), SLOW])
    with (
        alone(lambda: next(made)(), envs=3) as worker,
        pytest.raises(ConfigError, match="there is no motor"),
    ):
        worker.run()


def test_ctrl_c_ends_the_other_environments_when_the_first_one_is_done(signals_stay):
    at_work, interrupt = threading.Event(), threading.Event()

    def of_first(env):
        at_work.wait(20.0)  # so that each environment has one episode

    def of_second(env):
        at_work.set()
        if worker.lanes[0].loop.counts.env_steps == 10 and not interrupt.is_set():
            interrupt.set()
            time.sleep(0.1)  # the caller of `run` waits for this environment only
            signal.raise_signal(signal.SIGINT)

    # SIGINT is ignored if tests run in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    makes = iter([calling(of_first), partial(calling(of_second), 10**6, 0.001)])
    with alone(lambda: next(makes)(), envs=2) as worker:
        worker.run(nb_episodes=2)
        steps = worker.condition().env_steps
        time.sleep(0.1)
        assert worker.condition().env_steps == steps
    assert interrupt.is_set()


def test_test_episodes_are_the_first_lanes():
    """This holds however the two lanes share the episodes; each has one at least."""
    both = threading.Barrier(2, timeout=20.0)
    env_cls = calling(lambda env: env.total_steps or both.wait())
    with alone(partial(env_cls, 3), envs=2) as worker:
        worker.run(test_episode_interval=1, nb_episodes=6, verbose=False)
        first, second = [(lane.loop.counts, lane.loop.collected_steps) for lane in worker.lanes]
    assert first[0].env_steps > first[1]
    assert second[0].env_steps == second[1]
    assert first[1] + second[1] == 18


def test_a_policy_drives_all_lanes_which_share_no_parameters(inproc_house, until):
    trainer = inproc_house.trainer()
    worker = inproc_house.worker(SLOW, envs=2)
    inproc_house.start(worker.run, verbose=False)
    publish(trainer)
    until(lambda: [lane.loop.counts.policy_version for lane in worker.lanes] == [1, 1])
    assert worker.condition().policy_version == 1
    actors = [lane.loop.driver.actor for lane in worker.lanes]
    parameters = [p.data_ptr() for actor in actors for p in actor.parameters()]
    assert len(parameters) == len(set(parameters)) == 4


def test_samples_of_any_lane_that_do_not_fit_end_the_worker():
    outbox = SimpleNamespace(incarnations=(1, 2))
    role = WorkerRole(outbox, None, None, Condition(), print)
    with pytest.raises(RefusedError, match="do not fit those in the trainer's memory: too long"):
        role.on_message(m.Dismissal("w", 2, "too long"), memoryview(b""), b"")


# -- lockstep --------------------------------------------------------------------------------------


class TicketAgent(CountingAgent):
    """An agent whose training steps each need a ticket."""

    tickets: threading.Semaphore

    def train(self, batch):
        self.tickets.acquire()
        return super().train(batch)


@pytest.fixture
def tickets(monkeypatch):
    monkeypatch.setattr(TicketAgent, "tickets", threading.Semaphore(0), raising=False)
    yield TicketAgent.tickets
    TicketAgent.tickets.release(10**6)


@pytest.fixture
def no_patience(monkeypatch):
    """Have lanes say at once that they wait."""
    monkeypatch.setattr("tmrl_like.worker.parts.Lane", partial(Lane, remind_after_s=0.0))


def collected(worker):
    return sum(lane.loop.collected_steps for lane in worker.lanes)


@pytest.mark.parametrize(("lanes", "ratio"), [(1, 0.5), (3, 2.0)])
def test_tasks_hold_gathering_back_and_none_is_left_at_the_end(
    inproc_house, until, tickets, lanes, ratio
):
    pace = {"max_training_steps_per_env_step": ratio, "training_agent_cls": TicketAgent}
    trainer = inproc_house.trainer(training=ENDLESS | pace)
    worker = inproc_house.worker(partial(CountingEnv, 10), envs=lanes)
    training, ahead, tickets_given = trainer.training, [0.0], 0
    inproc_house.start(trainer.run)
    running = inproc_house.start(
        worker.run_synchronous, nb_steps=60, end_episodes=False, test_episode_interval=3
    )
    while running.is_alive():
        tickets.release()
        tickets_given += 1
        until(lambda made=tickets_given: training.total_updates >= made or not running.is_alive())
        ahead.append(collected(worker) - training.total_updates / ratio)
    running.join()
    pacer = training.pacer
    assert training.total_updates == int(ratio * pacer.tasked_steps)
    untasked = collected(worker) - pacer.tasked_steps
    assert untasked < 7 + 3 * lanes
    # tasks of one waiting step, and of the step just made
    assert max(ahead) <= untasked + 2 * lanes + 1 / ratio
    assert max(ahead) > untasked


@pytest.mark.parametrize(("end_episodes", "before_it_waits"), [(True, 10), (False, 2)])
def test_a_lane_in_lockstep_says_that_it_waits_in_vain_until_it_is_stopped(
    inproc_house, until, caplog, no_patience, end_episodes, before_it_waits
):
    worker = inproc_house.worker(SLOW)
    options = {"initial_steps": 1, "end_episodes": end_episodes}
    running = inproc_house.start(worker.run_synchronous, **options)
    until(lambda: "in lockstep, and nothing trains for 0 s" in caplog.text)
    assert collected(worker) == before_it_waits
    worker.stop()
    running.join(60)
    assert not running.is_alive()
    assert caplog.text.count("nothing trains") == 1


def test_in_lockstep_a_lane_waits_for_room_and_loses_no_sample(
    inproc_house, rows, until, caplog, no_patience
):
    little = OutboxOptions(max_bytes=1 << 17)
    worker = inproc_house.worker(partial(CountingEnv, 10), outbox=little)
    running = inproc_house.start(worker.run_synchronous, initial_steps=10**9)
    until(lambda: "in lockstep, and there has been no room for samples for 0 s" in caplog.text)
    waiting = collected(worker)
    inproc_house.start(inproc_house.trainer(rows, training=ENDLESS).run)
    until(lambda: rows.count() > 2 * waiting)
    worker.stop()
    running.join(60)
    (arrived,) = rows.arrived.values()
    assert arrived == of_episodes(len(arrived) // 11 * 10 + 10, 10)[: len(arrived)]
    assert caplog.text.count("no room for samples") < waiting


def test_no_step_is_taken_before_the_link_knows_that_its_samples_are_awaited(zmq_house):
    """Otherwise what a fast environment makes meanwhile would train without lockstep."""
    known = []
    worker = zmq_house.worker(calling(lambda env: known.append(worker.link.status.awaits)))
    zmq_house.start(zmq_house.trainer(training=ENDLESS).run)
    assert worker.wait_connected(60)
    worker.run_synchronous(nb_steps=10, initial_steps=100)
    assert len(known) >= 110
    assert all(known)


@pytest.mark.parametrize("is_resumed", [True, False])
def test_a_trainer_that_is_started_again_lets_the_lanes_go_on(
    zmq_house, until, tmp_path, is_resumed
):
    worker = zmq_house.worker(partial(CountingEnv, 10), envs=2)
    running = zmq_house.start(worker.run_synchronous, nb_steps=400, end_episodes=False)
    tasked = 0
    for steps in (60, 200, None):
        trainer = zmq_house.trainer(
            training=ENDLESS, checkpoint_path=tmp_path if is_resumed else None
        )
        pacer = trainer.training.pacer
        assert pacer.tasked_steps == tasked * is_resumed
        training = zmq_house.start(trainer.run)
        if steps is not None:
            until(lambda steps=steps: collected(worker) > steps)
            trainer.close()
            training.join(20)
            tasked = pacer.tasked_steps
    running.join(60)
    assert not running.is_alive()
    assert trainer.training.total_updates == pacer.tasked_steps
