"""Hooks receive a worker's rollouts and do not slow it down."""

import threading
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from house import alone
from kit.environments import acting, returning
from kit.episodes import episode
from kit.fakes import CountingEnv, LinearActor

from tmrl_like.rollouts.hooks import Rollouts
from tmrl_like.types import ActionSource

STEPS = 5


def with_info(obs, *results):
    """Return a step's results with items in `info`."""
    return obs, *results[:-1], {"progress": np.float32(obs[1] / STEPS), "note": "text"}


Told = partial(returning(with_info), STEPS)


class Saying(LinearActor):
    """An actor whose extras number its actions."""

    extras: ClassVar = {"number": 0}

    def act(self, obs, test=False):
        self.extras = {"number": self.extras["number"] + 1}
        return super().act(obs, test)


def test_a_worker_hands_over_each_training_and_test_episode():
    rollouts = []
    with alone(Told, Saying, on_rollout=rollouts.append) as worker:
        worker.run(nb_episodes=2, test_episode_interval=2, verbose=False)
        name = worker.name
    assert [rollout.test for rollout in rollouts] == [True, False, False]
    first, second, _ = rollouts
    assert (first.worker, first.terminated, first.truncated, first.fault) == (name, True, False, "")
    assert list(first.rewards) == [1, 2, 3, 4, 5]
    assert first.info.keys() == {"progress", "number"}
    assert first.info["progress"] == pytest.approx(np.arange(1, 6) / 5)
    assert [*first.info["number"], *second.info["number"]] == list(range(1, 11))
    assert set(first.sources) == {ActionSource.POLICY}
    assert (np.diff(first.times_s, prepend=0.0) > 0).all()
    assert first.observations is None


def test_observations_are_there_where_they_are_asked_for_and_one_more_than_actions():
    rollouts = []
    with alone(Told, on_rollout=[rollouts.append], rollout_observations=True, envs=2) as worker:
        worker.run_episode()
    assert np.array_equal(rollouts[0].observations, [[1, step] for step in range(STEPS + 1)])


def test_rollouts_hold_what_was_there_where_arrays_are_used_again():
    kept, seen, rollouts = np.zeros(1, np.float32), np.zeros(2, np.float32), []

    def act(obs):
        kept[0] += 0.125
        return kept

    def again(obs, *others):
        seen[:] = obs
        return seen, *others[:-1], {"position": seen} if others[1:] else {}

    env_cls = returning(again, returning(again), "reset")
    with alone(
        env_cls, acting(act), on_rollout=rollouts.append, rollout_observations=True
    ) as worker:
        worker.run_episode(3)
    counted = [[1, step] for step in range(4)]
    assert np.array_equal(rollouts[0].observations, counted)
    assert np.array_equal(rollouts[0].info["position"], counted[1:])
    assert rollouts[0].actions.ravel().tolist() == [0.125, 0.25, 0.375]


def test_an_episode_that_the_environment_breaks_off_says_so():
    rollouts = []
    with alone(partial(CountingEnv, raise_at=3), on_rollout=rollouts.append) as worker:
        worker.run_episode()
    assert len(rollouts[0]) == 2
    assert "the motor is on fire" in rollouts[0].fault


def test_an_episode_that_is_too_long_makes_no_rollout():
    rollouts, step = [], (np.zeros(1), 0.0, {}, 0, 0, 0.0, None)
    hooks = Rollouts(rollouts.append)
    for length in (100_000, 100_001, 3):
        steps = hooks.begin(np.zeros(1), 0.0)
        steps.extend([step] * length)
        hooks.end(steps, episode(), 0.1)
    hooks.close()
    assert [len(rollout) for rollout in rollouts] == [100_000, 3]


@pytest.mark.parametrize("error", [ValueError("not today"), SystemExit("not today")])
def test_what_a_hook_raises_is_a_line_and_the_others_are_called(caplog, error):
    rollouts = []

    def broken(rollout):
        raise error

    with alone(on_rollout=[broken, rollouts.append]) as worker:
        worker.run_episodes(nb_episodes=2)
    assert len(rollouts) == 2
    assert caplog.text.count(f"raised {type(error).__name__}: not today") == 2


def test_a_hook_that_does_not_come_back_holds_up_nobody(until, caplog):
    go_on, rollouts = threading.Event(), []

    def slow(rollout):
        go_on.wait(60)
        rollouts.append(rollout)

    with alone(on_rollout=slow) as worker:
        for _ in range(9):
            worker.run_episode()
        assert worker.rollouts.dropped in (4, 5)  # one is in the hook, and four wait
        worker.rollouts.close(0.01)
        assert "on_rollout did not come back within 0.01 s" in caplog.text
        go_on.set()
        until(lambda: len(rollouts) == 9 - worker.rollouts.dropped)
